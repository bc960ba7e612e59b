package relay

// How the crossings' transcripts write messages.

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/urn"
)

// crossingTypes are the types in the transcripts, each with the number of a
// string field that holds the content.
var crossingTypes = map[string]struct {
	url     string
	content protowire.Number
}{
	"CDS":  {"envoy.config.cluster.v3.Cluster", 28},               // alt_stat_name
	"EDS":  {"envoy.config.endpoint.v3.ClusterLoadAssignment", 5}, // named_endpoints, a map
	"LDS":  {"envoy.config.listener.v3.Listener", 28},             // stat_prefix
	"RDS":  {"envoy.config.route.v3.RouteConfiguration", 3},       // internal_only_headers
	"SRDS": {"envoy.config.route.v3.ScopedRouteConfiguration", 2}, // route_configuration_name
	"VHDS": {"envoy.config.route.v3.VirtualHost", 2},              // domains
	"NEW":  {"example.Unheard", 2},
	"NDS":  {"istio.networking.nds.v1.NameTable", 1}, // table, a map: its resource has no name
}

const crossingPrefix = "type.googleapis.com/"

func typeURLOf(t *testing.T, short string) string {
	t.Helper()
	typ, ok := crossingTypes[strings.ToUpper(short)]
	if !ok {
		t.Fatalf("unknown type %q", short)
	}
	return crossingPrefix + typ.url
}

func shortType(typeURL string) string {
	for short, typ := range crossingTypes {
		if crossingPrefix+typ.url == typeURL {
			return short
		}
	}
	return typeURL
}

// scriptedResource makes a resource of the words of a line.
func scriptedResource(t *testing.T, typ string, words []string) *discoveryv3.Resource {
	t.Helper()
	variant, word := variantName(t, words[0]), words[0]
	if variant != nil {
		_, _, _, rest := cutBraces(word)
		word = variant.GetName() + rest
	}
	name, version, content, filled := cutResource(word)
	r := &discoveryv3.Resource{Name: name, Version: version}
	if variant != nil {
		r.Name, r.ResourceName = "", variant
	}
	garbage, redirect, port := false, "", uint64(0)
	for _, word := range words[1:] {
		switch what, value, _ := strings.Cut(word, "="); {
		case word == "garbage":
			garbage = true
		case word == "nocache":
			r.CacheControl = &discoveryv3.Resource_CacheControl{DoNotCache: true}
		case what == "to":
			redirect = value
		case what == "port":
			n, err := strconv.ParseUint(value, 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			port = n
		case what == "alias":
			r.Aliases = append(r.Aliases, value)
		case what == "ttl":
			ttl, err := time.ParseDuration(value)
			if err != nil {
				t.Fatal(err)
			}
			r.Ttl = durationpb.New(ttl)
		case strings.HasPrefix(word, "as="):
			typ = strings.TrimPrefix(word, "as=")
		default:
			t.Fatalf("unknown word %q of a resource", word)
		}
	}
	if redirect != "" {
		r.Resource = redirectTo(t, redirect)
	}
	if !filled {
		return r
	}
	if text, times, ok := strings.Cut(content, "*"); ok {
		n, err := strconv.Atoi(times)
		if err != nil {
			t.Fatal(err)
		}
		content = strings.Repeat(text, n)
	}
	value := appendText(nil, 1, name)
	if name == "" {
		value = nil
	}
	number := crossingTypes[strings.ToUpper(typ)].content
	switch {
	case garbage:
		value = appendText(value, number, "\xff") // of no string, and of no message
	case strings.EqualFold(typ, "EDS"), strings.EqualFold(typ, "NDS"):
		value = appendText(value, number, string(appendText(nil, 1, content)))
	default:
		value = appendText(value, number, content)
	}
	if port > 0 { // of a Listener
		socket := protowire.AppendVarint(protowire.AppendTag(appendText(nil, 2, "10.0.0.1"), 3, protowire.VarintType), port)
		value = appendText(value, 2, string(appendText(nil, 1, string(socket))))
	}
	r.Resource = &anypb.Any{TypeUrl: typeURLOf(t, typ), Value: value}
	return r
}

// redirectTo returns a redirect in place of a resource. TP1: "Server redirects".
func redirectTo(t *testing.T, to string) *anypb.Any {
	t.Helper()
	u, err := urn.ParseURL(to)
	if err != nil {
		t.Fatal(err)
	}
	locator, err := u.Proto()
	if err != nil {
		t.Fatal(err)
	}
	a, err := anypb.New(locator)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// cutResource splits name@version=content. An xdstp name may contain =, and must have a version here.
func cutResource(word string) (name, version, content string, filled bool) {
	if strings.HasPrefix(word, "xdstp://") {
		name, version, _ = strings.Cut(word, "@")
		version, content, filled = strings.Cut(version, "=")
		return name, version, content, filled
	}
	name, content, filled = strings.Cut(word, "=")
	name, version, _ = strings.Cut(name, "@")
	return name, version, content, filled
}

func appendText(b []byte, number protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
}

// readResource returns the name and the content of a resource. A field that comes
// twice counts as its last.
func readResource(a *anypb.Any) (name, content string) {
	short := shortType(a.GetTypeUrl())
	for b := a.GetValue(); len(b) > 0; {
		number, _, n := protowire.ConsumeTag(b)
		value, m := protowire.ConsumeBytes(b[n:])
		if n < 0 || m < 0 {
			return name, "(undecodable)"
		}
		b = b[n+m:]
		switch {
		case number == 1 && short != "NDS":
			name = string(value)
		case number == crossingTypes[short].content:
			if short == "EDS" || short == "NDS" {
				_, n := protowire.ConsumeVarint(value)
				value, _ = protowire.ConsumeBytes(value[n:])
			}
			content = string(value)
		}
	}
	if times := len(content); times > 64 {
		content = fmt.Sprintf("%s*%d", content[:1], times)
	}
	return name, content
}

var hash = regexp.MustCompile(`^([0-9a-f]{4})[0-9a-f]{8,12}$`)

// shortHash shortens a version that is a hash.
func shortHash(version string) string { return hash.ReplaceAllString(version, "#$1") }

func describeDeltaRequest(m *discoveryv3.DeltaDiscoveryRequest, node string) string {
	l := newMessageLine(m.GetTypeUrl())
	l.list("subscribe", withLocators(m.GetResourceNamesSubscribe(), m.GetResourceLocatorsSubscribe()))
	l.list("unsubscribe", withLocators(m.GetResourceNamesUnsubscribe(), m.GetResourceLocatorsUnsubscribe()))
	var initial []string
	for name, version := range m.GetInitialResourceVersions() {
		initial = append(initial, name+"@"+shortHash(version))
	}
	l.list("initial", initial)
	if m.GetResponseNonce() != "" && m.GetErrorDetail() == nil {
		l.add("ACK " + m.GetResponseNonce())
	}
	if len(l.words) == 1 {
		l.add("(no names)")
	}
	l.tail(node, m.GetResponseNonce(), m.GetErrorDetail())
	return l.String()
}

func describeSotWRequest(m *discoveryv3.DiscoveryRequest, node string) string {
	l := newMessageLine(m.GetTypeUrl())
	names := slices.Sorted(slices.Values(withLocators(m.GetResourceNames(), m.GetResourceLocators())))
	l.add("names=[" + strings.Join(names, " ") + "] version=" + shortHash(m.GetVersionInfo()) + " nonce=" + m.GetResponseNonce())
	l.tail(node, m.GetResponseNonce(), m.GetErrorDetail())
	return l.String()
}

func describeDeltaResponse(m *discoveryv3.DeltaDiscoveryResponse) string {
	l := newMessageLine(m.GetTypeUrl())
	l.add("nonce=" + m.GetNonce())
	var resources []string
	for _, r := range m.GetResources() {
		resources = append(resources, describeResource(r))
	}
	l.resources(resources, m.GetResourceErrors())
	l.list("removed", describeNames(m.GetRemovedResources(), m.GetRemovedResourceNames()))
	return l.String()
}

func describeSotWResponse(m *discoveryv3.DiscoveryResponse) string {
	l := newMessageLine(m.GetTypeUrl())
	l.add("version=" + shortHash(m.GetVersionInfo()) + " nonce=" + m.GetNonce())
	var resources []string
	for _, a := range m.GetResources() {
		var wrapped discoveryv3.Resource
		if a.MessageIs(&wrapped) {
			if err := a.UnmarshalTo(&wrapped); err != nil {
				resources = append(resources, err.Error())
				continue
			}
			resources = append(resources, describeResource(&wrapped))
			continue
		}
		name, content := readResource(a)
		resources = append(resources, name+"="+content)
	}
	l.resources(resources, m.GetResourceErrors())
	return l.String()
}

func describeResource(r *discoveryv3.Resource) string {
	text := describeName(r.GetName(), r.GetResourceName()) + "@" + shortHash(r.GetVersion())
	if r.GetResource() != nil {
		name, content := readResource(r.GetResource())
		text += "=" + content
		if name != r.GetName()+r.GetResourceName().GetName() {
			text += ",inside=" + name
		}
	}
	if r.GetTtl() != nil {
		text += ",ttl=" + r.GetTtl().AsDuration().String()
	}
	for _, alias := range r.GetAliases() {
		text += ",alias=" + alias
	}
	if r.GetCacheControl().GetDoNotCache() {
		text += ",nocache"
	}
	return text
}

// messageLine is a message in one line.
type messageLine struct{ words []string }

func newMessageLine(typeURL string) *messageLine {
	return &messageLine{words: []string{shortType(typeURL)}}
}

func (l *messageLine) String() string { return strings.Join(l.words, " ") }

func (l *messageLine) add(word string) { l.words = append(l.words, word) }

// list adds words that have no order, if there are any.
func (l *messageLine) list(what string, of []string) {
	if len(of) > 0 {
		l.add(what + "=[" + strings.Join(slices.Sorted(slices.Values(of)), " ") + "]")
	}
}

func (l *messageLine) resources(resources []string, errs []*discoveryv3.ResourceError) {
	l.add("[" + strings.Join(slices.Sorted(slices.Values(resources)), " ") + "]")
	var errors []string
	for _, e := range errs {
		message, _, _ := strings.Cut(e.GetErrorDetail().GetMessage(), ": Unavailable: connection error") // gRPC's words
		errors = append(errors, strings.TrimSpace(describeErrorName(e)+": "+codes.Code(e.GetErrorDetail().GetCode()).String()+" "+message))
	}
	l.list("errors", errors)
}

// tail adds the fields that only some requests have.
func (l *messageLine) tail(node, nonce string, detail *status.Status) {
	if detail != nil {
		l.add("NACK " + nonce + ": " + strings.ReplaceAll(detail.GetMessage(), "\n", "; "))
	}
	if node != "" {
		l.add("node=" + node)
	}
}
