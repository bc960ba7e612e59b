package downstream

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// The other side of the sessions, for tests: an origin that writes to a cache,
// and the meaning of names.

// typesByShortName are the types that tests speak of.
var typesByShortName = map[string]string{
	"cds":    clusterType,
	"eds":    endpointType,
	"lds":    listenerType,
	"rds":    routeType,
	"srds":   scopedRouteType,
	"vhds":   virtualHostType,
	"cds2":   xdstype.ClusterV2,
	"eds2":   xdstype.EndpointsV2,
	"lds2":   xdstype.ListenerV2,
	"rds2":   xdstype.RouteV2,
	"rtds":   xdstype.RuntimeV3,
	"ecds":   xdstype.ExtensionConfigV3,
	"sds":    secretType,
	"widget": "type.googleapis.com/example.Widget", // of which nobody has heard
}

func shortName(typeURL string) string {
	for short, long := range typesByShortName {
		if long == typeURL {
			return short
		}
	}
	return typeURL
}

// knownAuthority is the only authority of xdstp names.
const knownAuthority = "known"

// viewAuthority is that of the globs that are views.
const viewAuthority = "view"

// oldStyleScope is that of the old-style names of the nodes of one cluster.
func oldStyleScope(cluster string) cache.Scope {
	return cache.Scope{Authority: "old", Partition: cluster, OldStyle: true}
}

// clusterNames gives names their meaning by the client's Node.cluster.
type clusterNames struct {
	cluster string
	closed  bool
	*meaning
}

func newClusterNames(c Client) Names { return plainMeaning.names(c) }

var plainMeaning = new(meaning)

// meaning is what names mean, and to whom, by a configuration.
type meaning struct {
	// clusters has others whose partition the nodes of a cluster share.
	clusters map[string]string
	// authorities has others which the names of the known one belong to; empty for none.
	authorities map[string]string
	// denied are names that nobody may have.
	denied []string
	// views are globs that are views, also without their authority.
	views []string
	// keepsID: the policy does not drop the parameter id.
	keepsID bool
}

func (m *meaning) names(c Client) Names {
	denied := append(strings.Fields(c.Node.GetMetadata().GetFields()[deniedField].GetStringValue()), m.denied...)
	cluster := c.Node.GetCluster()
	if to, ok := m.clusters[cluster]; ok {
		cluster = to
	}
	names := clusterNames{cluster: cluster, meaning: m}
	if len(denied) == 0 {
		return &names
	}
	return &restrictedNames{names, denied}
}

// restrictedNames are those of a client that may not have some of them.
type restrictedNames struct {
	clusterNames
	denied []string
}

// deniedField is what these names are in, in its Node's metadata.
const deniedField = "denied"

func (n *restrictedNames) Key(typeURL, name string) (cache.Key, error) {
	k, err := n.clusterNames.Key(typeURL, name)
	if err == nil {
		err = n.MayHaveOwn(k, k.Name)
	}
	return k, err
}

// Rights implements Restricted.
func (n *restrictedNames) Rights() Rights { return n }

func (n *restrictedNames) MayHaveOwn(_ cache.Key, own string) error {
	if slices.Contains(n.denied, own) {
		return &RefusedError{Refusal: RefusedRight, Client: &cache.Error{Code: codes.PermissionDenied, Message: "rights[0] does not allow it"}}
	}
	return nil
}

func (n *restrictedNames) MayHaveAll(names []string, of cache.Key) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return n.MayHaveOwn(of, name) != nil })
}

func (n *restrictedNames) Class() uint64 { return xxhash.Sum64String(strings.Join(n.denied, " ")) }

func (n *clusterNames) Key(typeURL, name string) (cache.Key, error) {
	if !urn.IsXdstp(name) {
		return cache.Key{Scope: oldStyleScope(n.cluster), TypeURL: typeURL, Name: name}, nil
	}
	bare, directives, derived := strings.Cut(name, "#")
	k, err := urn.KeyOf(bare)
	if err != nil {
		return cache.Key{}, err
	}
	if k.Authority == viewAuthority || slices.Contains(n.views, k.Name) {
		return cache.Key{Scope: cache.Scope{Derived: viewAuthority}, TypeURL: typeURL, Name: k.Name}, nil
	}
	to, moved := n.authorities[k.Authority]
	if k.Authority != knownAuthority || moved && to == "" {
		return cache.Key{}, fmt.Errorf("no authority %q", k.Authority)
	}
	if !moved {
		to = k.Authority
	}
	if !n.keepsID { // the policy drops this one
		k = k.WithParams(func(param string) bool { return param != "id" })
	}
	key := cache.Key{Scope: cache.Scope{Authority: to}, TypeURL: typeURL, Name: k.Name}
	if derived {
		key.Scope.Derived = cache.Resolved
		key.Name += "#" + directives
	}
	return key, nil
}

func (n *clusterNames) Close() { n.closed = true }

// recordingSource notes what it was to start and to stop.
type recordingSource struct {
	mu     sync.Mutex
	events []string
}

func (f *recordingSource) Start(k cache.Key)   { f.note("start", k) }
func (f *recordingSource) Refresh(k cache.Key) { f.note("refresh", k) }
func (f *recordingSource) Stop(k cache.Key)    { f.note("stop", k) }

func (f *recordingSource) note(what string, k cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, fmt.Sprintf("%s %s %s %s", what, k.Scope, shortName(k.TypeURL), k.Name))
}

// take returns what was noted since the last time.
func (f *recordingSource) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	events := f.events
	f.events = nil
	return events
}

// newTestCache makes a cache whose topics do not end by time.
func newTestCache(f cache.Source, idleEntries int) *cache.Cache {
	return cache.New(f, cache.Options{Linger: time.Hour, IdleEntries: idleEntries})
}

// newTestResource makes a resource of any type: a message with its name in field
// 1, as all types have it, and a text in field 2.
func newTestResource(typeURL, name, version, content string) *cache.Resource {
	return cache.NewResource(cache.Spec{Name: name, Version: version, TypeURL: typeURL, Value: encodeOf(typeURL, name, content)})
}

// contentBesideClaim is the field of the content of a resource with a claim: its own field of other types is that of the claim.
const contentBesideClaim = 1000

// encodeOf encodes a resource. A word such as "at-80" in the content is the address of a Listener, the key of a scoped
// route, or the domain of a virtual host.
func encodeOf(typeURL, name, content string) []byte {
	at := claim(content)
	text := func(b []byte, num protowire.Number, value string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), value)
	}
	b := text(nil, 1, name)
	switch {
	case at == "":
		return encodeContent(name, content)
	case typeURL == listenerType:
		pipe := text(nil, 1, at)
		b = text(b, 2, string(text(nil, 2, string(pipe))))
	case typeURL == scopedRouteType:
		fragment := text(nil, 1, at)
		b = text(b, 3, string(text(nil, 1, string(fragment))))
	case typeURL == virtualHostType:
		b = text(b, 2, at)
	default:
		return encodeContent(name, content)
	}
	return text(b, contentBesideClaim, content)
}

// claim is the claim in the content of a resource: see encodeOf.
func claim(content string) string {
	for _, word := range strings.Fields(content) {
		if strings.HasPrefix(word, "at-") {
			return word
		}
	}
	return ""
}

func encodeContent(name, content string) []byte {
	b := protowire.AppendTag(nil, 1, protowire.BytesType)
	b = protowire.AppendString(b, name)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	return protowire.AppendString(b, content)
}

// decodeContent is encodeContent's inverse, as a protobuf decoder has it: of a
// field that comes twice the last counts.
func decodeContent(b []byte) (name, content string) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return "", "undecodable"
		}
		m := protowire.ConsumeFieldValue(num, typ, b[n:])
		if m < 0 {
			return "", "undecodable"
		}
		if typ == protowire.BytesType {
			v, _ := protowire.ConsumeString(b[n:])
			switch num {
			case 1:
				name = v
			case 2, contentBesideClaim:
				content = v
			}
		}
		b = b[n+m:]
	}
	return name, content
}

// abbreviate shortens what tests make long only to be large.
func abbreviate(content string) string {
	const long = 40
	if len(content) <= long {
		return content
	}
	return fmt.Sprintf("%s...(%d bytes)", strings.TrimRight(content[:4], "."), len(content))
}
