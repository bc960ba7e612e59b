package downstream

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// TestTranscripts plays the transcripts in testdata. Each of them is about one
// rule, which its first lines name. The directives are:
//
//	relay [limit=BYTES] [idle=N] [subscriptions=N] [name-bytes=N] [scopes=N]
//	    [scopes-per-connection=N] [tombstones=N] [hold=DURATION]
//	  First, if at all: the size at which responses are cut, how many topics are
//	  kept when nobody watches them, what clients may cost, and how many removals
//	  each glob remembers, how long removals of names are held. All clients share one connection.
//
//	origin [cluster=C] [authority=known] [view=GLOB] [resolved|passed] [params=K=V] [version=V [all]] [stale]
//	  What the origin says now, to the nodes of a cluster (of old-style names) or
//	  to all (of xdstp names); or what the relay makes of what an authority says, or
//	  has in a view. V is the version of the origin that it has; with all, so has
//	  everything that had the version before. With stale, it is from before the relay was started.
//	  All lines of one type are one update:
//	    cds a v1 content [only=name | only=wildcard | only=glob]
//	                                  new or changed; "x*300" is a content of 300
//	                                  bytes, "-" a version that is not given
//	                                  and any of: ttl=1m; nocache; match=K=V, a
//	                                  variant for who asks with that; of=NAME, the
//	                                  resource of which this is an alias;
//	                                  service=NAME, the endpoints of a Cluster;
//	                                  ahead, the glob has no answer of this source yet
//	    cds a v1 one,secret=s,secret=t  a content that names two Secrets
//	    cds a v1 to=URL               a redirect
//	    cds -a [NOT_FOUND why]        gone, or does not exist
//	    cds -a only=name              the same (or only=wildcard, only=glob)
//	    cds !a UNAVAILABLE why        cannot be had
//	    cds !a UNREACHABLE why        the same, as no control plane can be reached
//	    cds !a REFUSED why            the same, as the relay does not ask for it
//	    cds !a BAD why                the same, as what there is cannot be stored
//	    cds ?a                        not answered by a SotW server that answers others
//	    cds * partial                 a part of it could not be had
//	    cds * [full] [version=7]      the wildcard is known; with full, the lines
//	                                  of its type are all of it
//	    cds * full incomplete         the same, and more of the first answer may follow
//	    cds * complete                nothing more does
//	    cds !* UNAVAILABLE why        the wildcard cannot be had
//	  A glob's name in the place of * says that of the glob. Names that are in a glob
//	  go into that as well.
//	  It prints which of the clients that were at rest have now something to read.
//
//	connect CLIENT delta|sotw [cluster=C] [agent=envoy] [features=(ttl,wrapped)] [pass] [ends=names|all]
//	    [denied=(NAME,NAME)] [relay] [listener] [marks]
//	  It may not have the names that are denied. With relay it is another relay. With listener it comes by one. With
//	  marks it is told when a first answer is complete. With ends its stream ends when nothing can be served on it; what prints who is
//	  woken prints that too.
//
//	request CLIENT TYPE
//	  One request. A delta one has lines "subscribe A B", "unsubscribe A B",
//	  "initial A=v1 B=v2"; a SotW one "names A B" (which later requests repeat),
//	  and "version V" in the place of the one that was accepted last. Both may
//	  have "nack why" and "nonce N": a SotW client gives the newest nonce of the
//	  type unless that says another, or "none".
//
//	ack CLIENT TYPE
//	  The request that accepts the newest response.
//
//	read CLIENT [once]
//	  The responses that the client can read now, until there are no more.
//
//	disconnect CLIENT
//
//	reconfigure [clusters=(C>D,...)] [authorities=(known>A)] [denied=(NAME,...)] [views=(GLOB,...)]
//	    [keeps-id] [admits=NOBODY]
//	  A new configuration, which is all in this line: the nodes of cluster C see what those of D do; xdstp
//	  names of the known authority belong to authority A, or to none; nobody may have the
//	  names that are denied; these globs are views, also without the authority; the policy does not drop the parameter id; no
//	  client of a listener is admitted. It prints which of the clients that were at rest have now something to read.
//
//	wait DURATION
//	  It prints which of the clients that were at rest have something to read then.
//
//	source
//	  What was begun and ended to be fed since the last time.
//
//	clients
//	  The open streams as an operator sees them, and how many of them reject something, or have refused names, now.
//
//	rejecters
//	  Which clients reject something now, for each type of a scope of which a client has rejected something.
//
//	held CLIENT
//	  What the client holds as an operator sees it. Under a wildcard or glob are its members.
func TestTranscripts(t *testing.T) {
	for _, dir := range []string{"delta", "sotw", "both"} {
		datadriven.Walk(t, filepath.Join("testdata", dir), func(t *testing.T, path string) {
			synctest.Test(t, func(t *testing.T) {
				tr := &transcript{source: &recordingSource{}, clients: map[string]*testClient{}}
				defer func() {
					if tr.cache != nil {
						tr.cache.Close()
					}
				}()
				datadriven.RunTest(t, path, tr.run)
			})
		})
	}
}

type transcript struct {
	versions map[cache.Scope]*cache.OriginVersion // the newest of each origin
	source   *recordingSource
	cache    *cache.Cache
	server   *Server
	log      *logRecord
	limits   Limits
	clients  map[string]*testClient
	// notAdmitted is why no client is admitted.
	notAdmitted error
	// rejected has what Options.Rejected was called with.
	rejected map[ScopeType]bool
}

func (tr *transcript) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	if tr.cache == nil {
		limit, idle, tombstones, hold := DefaultMaxResponseBytes, 1000, 100, "0s"
		if d.Cmd == "relay" {
			d.MaybeScanArgs(t, "limit", &limit)
			d.MaybeScanArgs(t, "idle", &idle)
			d.MaybeScanArgs(t, "tombstones", &tombstones)
			d.MaybeScanArgs(t, "hold", &hold)
			d.MaybeScanArgs(t, "subscriptions", &tr.limits.Subscriptions)
			d.MaybeScanArgs(t, "name-bytes", &tr.limits.NameBytes)
			d.MaybeScanArgs(t, "scopes", &tr.limits.Scopes)
			d.MaybeScanArgs(t, "scopes-per-connection", &tr.limits.ScopesPerConnection)
		}
		tr.cache = cache.New(tr.source, cache.Options{
			Linger: time.Hour, IdleEntries: idle,
			Tombstones: cache.Tombstones{TTL: time.Hour, Limit: tombstones},
		})
		tr.server, tr.log = newTestServer(tr.cache, limit)
		tr.server.options.RemovalHold = duration(t, hold)
		tr.server.options.SecretsIn = secretsIn
		tr.rejected = map[ScopeType]bool{}
		tr.server.options.Rejected = func(of ScopeType, _ *Rejecters) { tr.rejected[of] = true }
	}
	var out []string
	switch d.Cmd {
	case "relay":
	case "origin":
		out = tr.origin(t, d)
	case "connect":
		node := &corev3.Node{Id: d.CmdArgs[0].Key}
		d.MaybeScanArgs(t, "cluster", &node.Cluster)
		d.MaybeScanArgs(t, "agent", &node.UserAgentName)
		if arg, ok := d.Arg("features"); ok {
			for _, f := range arg.Vals {
				node.ClientFeatures = append(node.ClientFeatures, map[string]string{"ttl": session.FeatureTTL, "wrapped": session.FeatureWrapped, "grpc": session.FeatureWrappedGRPC, "alone": "xds-relay.errors-alone"}[f])
			}
		}
		node.Metadata = deniedMetadata(d)
		c := newTestClient(tr.server, d.CmdArgs[1].Key, node)
		c.st.limits, c.st.passes = &tr.limits, d.HasArg("pass")
		if d.HasArg("relay") {
			c.st.grpc = noStream{ctx: metadata.NewIncomingContext(c.grpc.Context(), metadata.Pairs(chain.Header, "another"))}
		}
		if d.HasArg("listener") {
			c.st.gate = newGate(ListenerOptions{Admits: func(*identity.Identity) error { return tr.notAdmitted }})
		}
		if d.HasArg("marks") {
			c.st.gate = newGate(ListenerOptions{Peers: true})
		}
		var ends string
		d.MaybeScanArgs(t, "ends", &ends)
		c.st.unreachable = map[string]WhenUnreachable{"names": EndNames, "all": EndAll}[ends]
		tr.clients[d.CmdArgs[0].Key] = c
	case "request":
		out = tr.request(t, d)
	case "ack":
		c, typeURL := tr.client(t, d), tr.typeURL(t, d.CmdArgs[1].Key)
		m := c.memory(typeURL)
		if c.st.form == deltaForm.name {
			out = tr.result(c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: m.nonce}))
		} else {
			req := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: m.nonce, VersionInfo: m.version}
			req.ResourceNames, req.ResourceLocators = namesAndLocators(m.names)
			out = tr.result(c.sotw(req))
		}
	case "read":
		c := tr.client(t, d)
		if d.HasArg("once") {
			if r := c.read(t); r != nil {
				out = append(out, r.String())
			}
		} else {
			for _, r := range c.readAll(t) {
				out = append(out, r.String())
			}
		}
		if out == nil {
			out = []string{"nothing"}
		}
	case "disconnect":
		tr.client(t, d).close()
		delete(tr.clients, d.CmdArgs[0].Key)
	case "reconfigure":
		out = tr.reconfigure(d)
	case "wait":
		asleep := tr.asleep()
		time.Sleep(duration(t, d.CmdArgs[0].Key))
		synctest.Wait()
		out = tr.woken(asleep)
	case "source":
		out = tr.source.take()
		slices.Sort(out)
		if out == nil {
			out = []string{"nothing"}
		}
	case "clients":
		out = tr.describe()
	case "rejecters":
		out = tr.rejecters()
	case "held":
		out = tr.held(t, tr.client(t, d))
	default:
		t.Fatalf("%s: unknown directive %q", d.Pos, d.Cmd)
	}
	return strings.Join(out, "\n")
}

// secretsIn returns the Secrets that the content of a resource names: "one,secret=s,secret=t".
func secretsIn(r *cache.Resource) (names []string) {
	_, content := decodeContent(r.Value())
	for word := range strings.SplitSeq(content, ",") {
		if name, ok := strings.CutPrefix(word, "secret="); ok {
			names = append(names, name)
		}
	}
	return names
}

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// reconfigure gives the relay another configuration, and shows who is woken by it.
func (tr *transcript) reconfigure(d *datadriven.TestData) []string {
	m := new(meaning)
	pairs := func(key string) map[string]string {
		all := map[string]string{}
		if arg, ok := d.Arg(key); ok {
			for _, v := range arg.Vals {
				from, to, _ := strings.Cut(v, ">")
				all[from] = to
			}
		}
		return all
	}
	m.clusters, m.authorities = pairs("clusters"), pairs("authorities")
	if arg, ok := d.Arg("denied"); ok {
		m.denied = arg.Vals
	}
	if arg, ok := d.Arg("views"); ok {
		m.views = arg.Vals
	}
	m.keepsID = d.HasArg("keeps-id")
	tr.notAdmitted = nil
	if d.HasArg("admits") {
		tr.notAdmitted = &identity.RefusedError{Reason: identity.NotAdmitted, Message: "not admitted", Detail: "not admitted"}
	}
	asleep := tr.asleep()
	tr.server.Reconfigure(m.names)
	synctest.Wait()
	return tr.woken(asleep)
}

// deniedMetadata is the metadata of a Node whose client may not have some names; nil if it may have
// all.
func deniedMetadata(d *datadriven.TestData) *structpb.Struct {
	arg, ok := d.Arg("denied")
	if !ok {
		return nil
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{deniedField: structpb.NewStringValue(strings.Join(arg.Vals, " "))}}
}

func (tr *transcript) client(t *testing.T, d *datadriven.TestData) *testClient {
	t.Helper()
	c := tr.clients[d.CmdArgs[0].Key]
	if c == nil {
		t.Fatalf("%s: no client %q is connected", d.Pos, d.CmdArgs[0].Key)
	}
	return c
}

func (tr *transcript) typeURL(t *testing.T, short string) string {
	t.Helper()
	if short == "none" {
		return ""
	}
	typeURL, ok := typesByShortName[short]
	if !ok {
		t.Fatalf("unknown type %q", short)
	}
	return typeURL
}

// result shows what became of a request.
func (tr *transcript) result(err error) []string {
	out := tr.log.take()
	if err != nil {
		out = append(out, status.Convert(err).Err().Error())
	}
	return out
}

func (tr *transcript) request(t *testing.T, d *datadriven.TestData) []string {
	t.Helper()
	c, typeURL := tr.client(t, d), tr.typeURL(t, d.CmdArgs[1].Key)
	m := c.memory(typeURL)
	delta := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL}
	sotw := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: m.nonce, VersionInfo: m.version}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		rest := strings.Join(words[1:], " ")
		switch words[0] {
		case "subscribe":
			delta.ResourceNamesSubscribe, delta.ResourceLocatorsSubscribe = namesAndLocators(words[1:])
		case "unsubscribe":
			delta.ResourceNamesUnsubscribe, delta.ResourceLocatorsUnsubscribe = namesAndLocators(words[1:])
		case "initial":
			delta.InitialResourceVersions = map[string]string{}
			for _, w := range words[1:] {
				i := strings.LastIndexByte(w, '=')
				delta.InitialResourceVersions[w[:i]] = w[i+1:]
			}
		case "names":
			m.names = words[1:]
		case "node":
			delta.Node = transcriptNode(t, words[1:])
			sotw.Node = delta.Node
		case "version":
			sotw.VersionInfo = rest
		case "nonce":
			if rest == "none" {
				rest = ""
			}
			delta.ResponseNonce, sotw.ResponseNonce = rest, rest
		case "nack":
			s := &statuspb.Status{Code: int32(codes.InvalidArgument), Message: rest}
			delta.ErrorDetail, sotw.ErrorDetail = s, s
		default:
			t.Fatalf("%s: unknown line %q in a request", d.Pos, line)
		}
	}
	sotw.ResourceNames, sotw.ResourceLocators = namesAndLocators(m.names)
	if c.st.form == deltaForm.name {
		return tr.result(c.delta(delta))
	}
	return tr.result(c.sotw(sotw))
}

// namesAndLocators separates what a client requests into names and locators: A{K=V} is a locator.
func namesAndLocators(words []string) (names []string, locators []*discoveryv3.ResourceLocator) {
	for _, word := range words {
		name, params, ok := strings.Cut(strings.TrimSuffix(word, "}"), "{")
		if !ok {
			names = append(names, word)
			continue
		}
		locators = append(locators, &discoveryv3.ResourceLocator{Name: name, DynamicParameters: cache.ParseParams(params)})
	}
	return names, locators
}

func transcriptNode(t *testing.T, words []string) *corev3.Node {
	t.Helper()
	node := &corev3.Node{}
	for _, w := range words {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "cluster":
			node.Cluster = value
		case "metadata":
			node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"some": structpb.NewStringValue(value)}}
		default:
			node.Id = w
		}
	}
	return node
}

// origin applies what the origin says, and shows who is woken by it.
func (tr *transcript) origin(t *testing.T, d *datadriven.TestData) []string {
	t.Helper()
	scope := oldStyleScope("")
	var arg string
	if d.MaybeScanArgs(t, "cluster", &arg) {
		scope = oldStyleScope(arg)
	}
	if d.MaybeScanArgs(t, "authority", &arg) {
		scope = cache.Scope{Authority: arg}
	}
	var view string // the name of a glob that is one
	if d.MaybeScanArgs(t, "view", &view) {
		scope = cache.Scope{Derived: viewAuthority}
	}
	d.MaybeScanArgs(t, "params", &scope.Params)
	for _, derived := range []string{cache.Resolved, cache.Passed} {
		if d.HasArg(derived) {
			scope.Derived = derived
		}
	}
	asleep := tr.asleep()
	version := tr.originVersion(t, d, scope)
	var updates []*cache.Update
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		typeURL := tr.typeURL(t, words[0])
		i := slices.IndexFunc(updates, func(u *cache.Update) bool { return u.TypeURL == typeURL })
		if i < 0 {
			i = len(updates)
			updates = append(updates, &cache.Update{Scope: scope, TypeURL: typeURL})
		}
		originLine(t, updates[i], words[1:])
	}
	var alt string // of the globs
	d.MaybeScanArgs(t, "alt", &alt)
	for _, u := range updates {
		for i := range u.Sets {
			if alt != "" {
				u.Sets[i].Name += "#alt=" + alt
			}
			if view != "" {
				u.Sets[i].Name = view
			}
		}
		if d.HasArg("stale") {
			for i := range u.Changes {
				u.Changes[i].Stale = true
			}
			for i := range u.Sets {
				u.Sets[i].Stale = true
			}
		}
		if version != nil {
			u.Origin = version
			for i := range u.Changes {
				u.Changes[i].Origin = version
			}
			for i := range u.Sets {
				u.Sets[i].Origin = version
				for j := range u.Sets[i].Changes {
					u.Sets[i].Changes[j].Origin = version
				}
			}
		}
		tr.cache.Apply(*u)
	}
	return tr.woken(asleep)
}

// originVersion returns the version that an origin directive gives, nil if it gives none.
func (tr *transcript) originVersion(t *testing.T, d *datadriven.TestData, scope cache.Scope) *cache.OriginVersion {
	t.Helper()
	var version string
	if !d.MaybeScanArgs(t, "version", &version) {
		return nil
	}
	if v := tr.versions[scope]; v != nil && d.HasArg("all") {
		v.Set(version)
		return v
	}
	if tr.versions == nil {
		tr.versions = map[cache.Scope]*cache.OriginVersion{}
	}
	tr.versions[scope] = cache.NewOriginVersion(scope, version)
	return tr.versions[scope]
}

// asleep are the clients that are at rest.
func (tr *transcript) asleep() map[string]bool {
	asleep := map[string]bool{}
	for name, c := range tr.clients {
		asleep[name] = !c.woken.Load()
	}
	return asleep
}

// woken says which of those have something to read now.
func (tr *transcript) woken(asleep map[string]bool) []string {
	var woken []string
	for name, c := range tr.clients {
		if asleep[name] && c.woken.Load() {
			woken = append(woken, name)
		}
	}
	out := []string{"wakes nobody"}
	if woken != nil {
		slices.Sort(woken)
		out = []string{"wakes " + strings.Join(woken, " ")}
	}
	for _, name := range slices.Sorted(maps.Keys(tr.clients)) {
		if s := tr.clients[name].grpc.transport.ended.Swap(nil); s != nil {
			out = append(out, fmt.Sprintf("%s ends: %v", name, s.Err()))
			out = append(out, tr.log.take()...)
		}
	}
	return out
}

// originLine adds one line to an update.
func originLine(t *testing.T, u *cache.Update, words []string) {
	t.Helper()
	name := words[0]
	setName := cache.Wildcard
	if bare := strings.TrimLeft(name, "!-?"); !u.Scope.OldStyle && urn.IsXdstp(bare) {
		var is bool
		if setName, is = globNamed(bare); is { // what is said is said of the glob
			name = strings.TrimSuffix(name, bare) + cache.Wildcard
		}
	}
	set := func() *cache.SetUpdate {
		i := slices.IndexFunc(u.Sets, func(s cache.SetUpdate) bool { return s.Name == setName })
		if i < 0 {
			i = len(u.Sets)
			u.Sets = append(u.Sets, cache.SetUpdate{Name: setName})
		}
		return &u.Sets[i]
	}
	why := func() *cache.Error {
		if words[1] == "UNREACHABLE" {
			return &cache.Error{Code: codes.Unavailable, Message: strings.Join(words[2:], " "), Outage: new(cache.Outage)}
		}
		if words[1] == "REFUSED" {
			return &cache.Error{Code: codes.ResourceExhausted, Message: strings.Join(words[2:], " "), Refused: true}
		}
		if words[1] == "BAD" {
			return &cache.Error{Code: codes.InvalidArgument, Message: strings.Join(words[2:], " "), Invalid: true}
		}
		var code codes.Code
		if err := code.UnmarshalJSON([]byte(strconv.Quote(words[1]))); err != nil {
			t.Fatal(err)
		}
		return &cache.Error{Code: code, Message: strings.Join(words[2:], " ")}
	}
	change := cache.Change{Name: name}
	inEntry, inSet := true, u.Scope.OldStyle || urn.IsXdstp(strings.TrimLeft(name, "!-"))
	switch {
	case name == cache.Wildcard:
		set().Partial = slices.Contains(words, "partial")
		switch {
		case slices.Contains(words, "incomplete"):
			set().Extent = cache.Begins
		case slices.Contains(words, "full"):
			set().Extent = cache.Whole
		case slices.Contains(words, "complete"):
			set().Extent = cache.Ends
		}
		for _, w := range words[1:] {
			if version, ok := strings.CutPrefix(w, "version="); ok {
				set().Origin = cache.NewOriginVersion(u.Scope, version)
			}
		}
		return
	case name == "!*":
		set().Err = why()
		return
	case name[0] == '?':
		change.Name, inSet = name[1:], false
		change.Err = &cache.Error{Code: codes.DeadlineExceeded, Message: "no answer", Unanswered: true}
	case name[0] == '!':
		change.Name, change.Err = name[1:], why()
	case name[0] == '-':
		change.Name, change.Gone = name[1:], true
		if len(words) > 1 && strings.HasPrefix(words[1], "only=") {
			inEntry, inSet = words[1] == "only=name", words[1] != "only=name"
		} else if len(words) > 1 {
			change.Err = why()
		}
	default:
		version, content, service := words[1], words[2], ""
		if version == "-" {
			version = ""
		}
		if text, times, ok := strings.Cut(content, "*"); ok {
			n, err := strconv.Atoi(times)
			if err != nil {
				t.Fatal(err)
			}
			content = strings.Repeat(text, n)
		}
		spec := cache.Spec{Name: name, Version: version, TypeURL: u.TypeURL}
		for _, word := range words[3:] {
			switch key, value, _ := strings.Cut(word, "="); key {
			case "only":
				inEntry, inSet = value == "name", value != "name"
			case "ttl":
				ttl, err := time.ParseDuration(value)
				if err != nil {
					t.Fatal(err)
				}
				spec.TTL = ttl
			case "nocache":
				spec.DoNotCache = true
			case "ahead":
				change.Member = true
			case "match":
				spec.Constraints = encodeConstraints(t, value)
			case "of":
				spec.Name = value
			case "service":
				service = value
			}
		}
		spec.Value = encodeOf(spec.TypeURL, spec.Name, content)
		if service != "" {
			spec.Value = wire.AppendBytes(spec.Value, wire.ClusterEDSConfig, wire.AppendString(nil, wire.EDSServiceName, service))
		}
		if target, ok := strings.CutPrefix(content, "to="); ok {
			spec.TypeURL, spec.Redirect, spec.Value = xdstype.Locator, target, encodeLocator(t, target)
		}
		change.Resource = cache.NewResource(spec)
		if spec.Name != name {
			change.Resource = change.Resource.Aliased()
		}
	}
	if urn.IsXdstp(change.Name) {
		k, err := urn.KeyOf(change.Name)
		if err != nil {
			t.Fatal(err)
		}
		change.Name = k.Name
	}
	if inEntry {
		u.Changes = append(u.Changes, change)
	}
	if inSet {
		if change.Gone {
			change.Err = nil // a member that is gone needs no reason
		}
		set().Changes = append(set().Changes, change)
	}
}

// encodeLocator encodes a redirect's value.
func encodeLocator(t *testing.T, target string) []byte {
	t.Helper()
	u, err := urn.ParseURL(target)
	if err != nil {
		t.Fatal(err)
	}
	locator, err := u.Proto()
	if err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(locator)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// encodeConstraints encodes those for who asks with a parameter K=V.
func encodeConstraints(t *testing.T, constraint string) string {
	t.Helper()
	key, value, _ := strings.Cut(constraint, "=")
	single := &discoveryv3.DynamicParameterConstraints_SingleConstraint{
		Key:            key,
		ConstraintType: &discoveryv3.DynamicParameterConstraints_SingleConstraint_Value{Value: value},
	}
	b, err := proto.Marshal(&discoveryv3.DynamicParameterConstraints{
		Type: &discoveryv3.DynamicParameterConstraints_Constraint{Constraint: single},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (tr *transcript) held(t *testing.T, c *testClient) []string {
	t.Helper()
	var out []string
	for h := range tr.server.InspectStream(c.st.id).Held("") {
		line := fmt.Sprintf("%s %s", shortName(h.TypeURL), h.Subscription)
		if h.Name != h.Subscription && h.Name != "" {
			line += " " + h.Name
		}
		line += ": " + h.State.String()
		for _, r := range []struct {
			what string
			is   *cache.Resource
		}{{"has ", h.Resource}, {"rejects ", h.Rejected}} {
			if r.is != nil {
				line += fmt.Sprintf(", %s%s = %s", r.what, r.is.Version(), openAny(t, h.TypeURL, &anypb.Any{TypeUrl: h.TypeURL, Value: r.is.Value()}).content)
			}
		}
		if h.Resource == nil && h.Version != "" {
			line += ", has " + h.Version
		}
		if h.Name == "" && h.Key != (cache.Key{}) {
			line += fmt.Sprintf(", %d members", h.Members)
		}
		if h.Err != nil {
			line += fmt.Sprintf(", %v", h.Err)
		}
		if h.NACK != nil {
			line += fmt.Sprintf(", of version %q: %s", h.NACK.Version, h.NACK.Reason)
		}
		for _, note := range []struct {
			what string
			is   bool
		}{{", stale", h.Stale}, {", pending", h.Pending}, {", covered", h.Covered}} {
			if note.is {
				line += note.what
			}
		}
		out = append(out, line)
	}
	slices.Sort(out)
	if out == nil {
		out = []string{"nothing"}
	}
	return out
}

func (tr *transcript) rejecters() (out []string) {
	of := map[ScopeType]*Rejecters{}
	for k := range tr.rejected {
		of[k] = &Rejecters{}
	}
	tr.server.CountRejecters(of)
	for k, r := range of {
		line := fmt.Sprintf("%s %s: %d of %d %v", k.Scope, shortName(k.TypeURL), r.Rejecting, r.Clients, r.Names)
		if r.Reason != "" {
			line += ": " + r.Reason
		}
		if r.Undecided {
			line += " (undecided)"
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

func (tr *transcript) describe() []string {
	var out []string
	for c := range tr.server.Describe() {
		line := fmt.Sprintf("%s %s", c.Node.GetId(), c.Form)
		for _, s := range c.Types {
			line += fmt.Sprintf(" %s:%d", shortName(s.TypeURL), s.Subscriptions)
			switch {
			case s.NACK != nil:
				line += fmt.Sprintf("(rejects: %s)", s.NACK.Reason)
			case s.LastRejection != "":
				line += fmt.Sprintf("(rejected: %s)", s.LastRejection)
			}
		}
		out = append(out, line)
	}
	slices.Sort(out)
	stats := tr.server.Stats()
	for _, typeURL := range slices.Sorted(maps.Keys(stats.Rejecting)) {
		if n := stats.Rejecting[typeURL]; n != 0 {
			out = append(out, fmt.Sprintf("rejecting %s: %d", shortName("type.googleapis.com/"+typeURL), n))
		}
	}
	for _, refusal := range slices.Sorted(maps.Keys(stats.WithRefused)) {
		if n := stats.WithRefused[refusal]; n != 0 {
			out = append(out, fmt.Sprintf("with refused names, %s: %d", refusal, n))
		}
	}
	return out
}
