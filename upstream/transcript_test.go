package upstream

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	"github.com/cockroachdb/datadriven"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/taster"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/wire"
	"github.com/xds-relay/xds-relay/xdstype"
)

// TestTranscripts plays testdata/*.txt: one type of one client, without I/O.
//
//	client form=delta|sotw type=cds [limit=BYTES] [params=K:V] [noglobs] [check=warn|refuse|off] [again] [answers]
//	                                                a client, with a stream open;
//	                                                it does not ask for globs; what becomes of
//	                                                resources that clients would reject; it is
//	                                                one more of the same control plane; which
//	                                                answers updates of sets are of is shown
//	resend                                          all that is held is sent to the cache once more
//	subscribe NAME... | unsubscribe NAME...         `wildcard` is *; `quietly`
//	                                                sends nothing yet
//	again NAME...                                   a name that is held is to be
//	                                                asked for again
//	resume NAME...                                  a client holds it from an earlier
//	                                                stream
//	recall NAME@VERSION...                          what the relay had before it was started, by
//	                                                name or as a member of a set
//	send                                            what is to be sent
//	response [nonce=N] [version=V] [type=T] [size=BYTES] [quietly]
//	    that size is as if there were more, of many small resources; one line per resource, NAME followed by any of
//	        v1         its version
//	        "text"     something in it; fill=N that is so long
//	        ttl        that it has a TTL of a minute; ttl=2m of two
//	        nocache    that it is not to be cached
//	        match=K:V  a variant for who asks with that parameter
//	        alias=NAME another name
//	        bodiless   no resource in it
//	        wrapped    SotW: in a Resource
//	        unnamed    which leaves the name to what is in it
//	        type=T     of another type
//	        redirect=URL  a ResourceLocator in its place
//	        garbage    its value is no message
//	        misfit     its value is a message, but not of its type
//	        good       a Cluster that every client takes; for-grpc, for-envoy: that only those take
//	        undecodable, unspeakable   its Any is no message, its name not UTF-8
//	    or `removed NAME [match=K:V]`, `error NAME CODE MESSAGE`
//	versions                                        what is held, name@version of the
//	                                                control plane
//	after DURATION                                  time passes
//	lost                                            the stream ends
//	unreachable REASON                              and there is no other
//	open [form=delta|sotw]                          a new stream
//
// What is sent to the control plane is printed as `send`, what the cache
// gets as `update`.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") || isOfNamesStream(path) {
			return
		}
		p := &player{}
		datadriven.RunTest(t, path, p.play)
	})
}

var typeURLs = map[string]string{
	"cds":   "type.googleapis.com/envoy.config.cluster.v3.Cluster",
	"eds":   "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
	"lds":   "type.googleapis.com/envoy.config.listener.v3.Listener",
	"cds2":  "type.googleapis.com/envoy.api.v2.Cluster",
	"rds":   "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
	"other": "type.googleapis.com/example.Unheard",
	"lists": "type.googleapis.com/example.ThingCollection",
}

type player struct {
	habits  *habits
	form    *form
	typ     string
	limit   int
	scope   cache.Scope
	noGlobs bool
	check   taster.Mode
	answers bool
	of      *topics // nil until something is subscribed to
	session session
	now     time.Time
	down    *cache.Error
	had     []*cache.Resource // before the relay was started
	// answered says that the control plane has answered on this stream.
	answered bool
	out      strings.Builder
}

func (p *player) play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	p.out.Reset()
	quiet := d.HasArg("quietly")
	d.CmdArgs = slices.DeleteFunc(d.CmdArgs, func(a datadriven.CmdArg) bool { return a.Key == "quietly" })
	var u cache.Update
	if p.of != nil {
		u = p.of.newUpdate()
	}
	switch d.Cmd {
	case "client":
		*p = player{now: time.Unix(0, 0), limit: 1 << 20, habits: p.habits}
		d.ScanArgs(t, "type", &p.typ)
		d.MaybeScanArgs(t, "limit", &p.limit)
		params := ""
		d.MaybeScanArgs(t, "params", &params)
		p.scope = cache.Scope{Authority: "a", Params: strings.ReplaceAll(params, ":", "=")}
		p.noGlobs, p.answers = d.HasArg("noglobs"), d.HasArg("answers")
		check := "warn"
		d.MaybeScanArgs(t, "check", &check)
		p.check = map[string]taster.Mode{"warn": taster.Warn, "refuse": taster.Refuse, "off": taster.Off}[check]
		if !d.HasArg("again") {
			p.habits = new(habits)
		}
		p.open(t, d)
		return ""
	case "subscribe":
		for _, name := range namesIn(d) {
			p.start(t, d, name, &u)
		}
	case "again":
		for _, name := range namesIn(d) {
			p.of.again(name, p.down, &u)
		}
	case "resume":
		for _, name := range namesIn(d) {
			p.of.resume(name, p.now)
		}
	case "recall":
		for _, text := range namesIn(d) {
			name, version, _ := strings.Cut(text, "@")
			p.had = append(p.had, cache.NewResource(cache.Spec{Name: name, Version: version, TypeURL: typeURLs[p.typ]}))
		}
		return ""
	case "unsubscribe":
		for _, name := range namesIn(d) {
			p.of.stop(name)
		}
	case "resend":
		u = p.of.resend()
	case "send":
	case "response":
		var nack string
		r, err := p.form.parse(p.response(t, d))
		if err != nil {
			return "the stream ends: " + err.Error()
		}
		d.MaybeScanArgs(t, "size", &r.size)
		if r.typeURL != typeURLs[p.typ] || p.session == nil || !p.session.begun() {
			p.answer()
			return "ignored: not asked for"
		}
		p.answer()
		if u, nack = p.session.response(p.now, r); nack != "" && quiet {
			fmt.Fprintln(&p.out, "rejected")
		}
	case "versions":
		return p.versions()
	case "after":
		wait, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		p.now = p.now.Add(wait)
	case "lost", "unreachable":
		p.session = nil
		if p.of == nil {
			break
		}
		p.of.lost()
		if d.Cmd == "unreachable" {
			p.down = &cache.Error{Code: codes.Unavailable, Message: d.CmdArgs[0].Key}
			p.of.failed(p.down, &u)
		}
	case "open":
		p.open(t, d)
	default:
		t.Fatalf("%s: what is %q?", d.Pos, d.Cmd)
	}
	if p.of == nil {
		return ""
	}
	p.print(u)
	for _, name := range p.of.takeWarnings() {
		fmt.Fprintf(&p.out, "warning: several variants of %s\n", name)
	}
	p.print(p.of.expire(p.now))
	if p.session != nil && !quiet {
		if p.of.needStream(p.session.begun()) {
			return p.out.String() + "a new stream is needed"
		}
		p.print(p.session.conclude(p.now, defaultResponseTimeout, silenceAfter(p.answered)))
		if p.form == deltaForm && !p.session.begun() {
			p.of.recall(p.recall)
		}
		for _, m := range p.session.requests(p.now, p.limit) {
			if n := proto.Size(m); n > p.limit {
				fmt.Fprintf(&p.out, "%d bytes: ", n)
			}
			p.send(m)
		}
		if p.of.needStream(p.session.begun()) {
			p.out.WriteString("a new stream is needed\n")
		}
		refusals, _ := p.of.takeRefusals()
		p.print(refusals)
		if what := p.session.unfit(); what != "" {
			fmt.Fprintf(&p.out, "unfit: %s\n", what)
		}
	}
	return p.out.String()
}

// recall yields what the relay had of a topic.
func (p *player) recall(k cache.Key, yield func(string, *cache.Resource)) {
	for _, r := range p.had {
		if glob, _ := urn.GlobOf(r.Name()); k.Name == r.Name() || k.Name == cache.Wildcard || k.Name == glob {
			yield(r.Name(), r)
		}
	}
}

// start subscribes to a name or a set.
func (p *player) start(t *testing.T, d *datadriven.TestData, name string, u *cache.Update) {
	t.Helper()
	began := p.of == nil
	if began || p.of.kind(name) == nil {
		p.of = withKind(p.of, p.scope, typeURLs[p.typ], name)
		if s := p.of.sets; s != nil {
			s.noGlobs, s.habits = p.noGlobs, p.habits
		}
		for k := range p.of.each {
			k.common().check = p.check
		}
	}
	if began {
		*u = p.of.newUpdate()
		p.session = p.form.session(p.of)
	}
	if p.of.both() && (name == cache.Wildcard || p.form != deltaForm || p.of.sets.keepsApart()) {
		t.Fatalf("%s: names do not share a stream with a wildcard", d.Pos)
	}
	p.of.start(name, p.down, u)
}

func (p *player) open(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	if d.HasArg("form") {
		var name string
		d.ScanArgs(t, "form", &name)
		p.form = map[string]*form{"delta": deltaForm, "sotw": sotwForm}[name]
	}
	p.down, p.answered = nil, false
	if p.of != nil {
		p.session = p.form.session(p.of)
	}
}

// answer notes that the control plane has answered something on the stream.
func (p *player) answer() {
	if !p.answered {
		p.answered = true
		if p.of != nil {
			p.of.waitAgain(p.now)
		}
	}
}

// silenceAfter is what is known of a control plane that is silent, which has answered
// something on the stream, or has not.
func silenceAfter(answered bool) silence {
	if answered {
		return selective
	}
	return mute
}

// namesIn are the names of a directive, and of its input, where any spelling can be.
func namesIn(d *datadriven.TestData) []string {
	var names []string
	for _, a := range d.CmdArgs {
		names = append(names, a.Key)
	}
	names = append(names, strings.Fields(d.Input)...)
	for i, name := range names {
		if name == "wildcard" {
			names[i] = cache.Wildcard
		}
	}
	return names
}

func (p *player) response(t *testing.T, d *datadriven.TestData) []byte {
	t.Helper()
	var version, nonce string
	typ := p.typ
	d.MaybeScanArgs(t, "version", &version)
	d.MaybeScanArgs(t, "nonce", &nonce)
	d.MaybeScanArgs(t, "type", &typ)
	delta := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs[typ], Nonce: nonce, SystemVersionInfo: version}
	sotw := &discoveryv3.DiscoveryResponse{TypeUrl: typeURLs[typ], Nonce: nonce, VersionInfo: version}
	var tail []byte // elements that cannot be in a message
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		switch words[0] {
		case "malformed": // the response itself
			tail = append(tail, 0xff)
		case "removed":
			if len(words) > 2 {
				match := strings.TrimPrefix(words[2], "match=")
				delta.RemovedResourceNames = append(delta.RemovedResourceNames, variantName(words[1], match))
				continue
			}
			delta.RemovedResources = append(delta.RemovedResources, words[1])
		case "error":
			e := &discoveryv3.ResourceError{
				ResourceName: &discoveryv3.ResourceName{Name: strings.Trim(words[1], `"`)},
				ErrorDetail:  &status.Status{Code: int32(code(words[2])), Message: strings.Join(words[3:], " ")},
			}
			delta.ResourceErrors = append(delta.ResourceErrors, e)
			sotw.ResourceErrors = append(sotw.ResourceErrors, e)
		default:
			r, wrap, broken := p.resource(t, typ, words)
			switch {
			case broken != nil:
				tail = protowire.AppendTag(tail, wire.ResponseResources, protowire.BytesType)
				tail = protowire.AppendBytes(tail, broken(p.form == deltaForm))
			case p.form == deltaForm:
				delta.Resources = append(delta.Resources, r)
			case wrap:
				sotw.Resources = append(sotw.Resources, wrapAny(t, r))
			default:
				sotw.Resources = append(sotw.Resources, r.Resource)
			}
		}
	}
	var m proto.Message = delta
	if p.form == sotwForm {
		m = sotw
	}
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, tail...)
}

func wrapAny(t *testing.T, r *discoveryv3.Resource) *anypb.Any {
	t.Helper()
	a, err := anypb.New(r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func code(name string) codes.Code {
	var c codes.Code
	if err := c.UnmarshalJSON([]byte(strconv.Quote(name))); err != nil {
		panic(err)
	}
	return c
}

// resource makes one of a line, or bytes that are none.
func (p *player) resource(t *testing.T, typ string, words []string) (r *discoveryv3.Resource, wrap bool, broken func(delta bool) []byte) {
	t.Helper()
	name := strings.Trim(words[0], `"`)
	if name == "nameless" {
		name = ""
	}
	if name == "wildcard" {
		name = cache.Wildcard
	}
	r = &discoveryv3.Resource{Name: name, Resource: &anypb.Any{TypeUrl: typeURLs[typ]}}
	text, kind := "", ""
	for _, word := range words[1:] {
		switch key, val, _ := strings.Cut(word, "="); {
		case strings.HasPrefix(word, `"`):
			text = strings.Trim(word, `"`)
		case key == "fill":
			n, err := strconv.Atoi(val)
			if err != nil {
				t.Fatal(err)
			}
			text = strings.Repeat("x", n)
		case word == "ttl":
			r.Ttl = durationpb.New(time.Minute)
		case key == "ttl":
			ttl, err := time.ParseDuration(val)
			if err != nil {
				t.Fatal(err)
			}
			r.Ttl = durationpb.New(ttl)
		case word == "nocache":
			r.CacheControl = &discoveryv3.Resource_CacheControl{DoNotCache: true}
		case key == "match":
			r.ResourceName, r.Name = variantName(r.Name, val), ""
		case key == "alias":
			r.Aliases = append(r.Aliases, val)
		case word == "bodiless":
			r.Resource = nil
		case word == "wrapped":
			wrap = true
		case word == "unnamed":
			r.Name = ""
		case key == "type":
			r.Resource.TypeUrl = typeURLs[val]
			typ = val
		case key == "redirect":
			r.Resource.TypeUrl = xdstype.Locator
			r.Resource.Value = redirect(t, val)
		case word == "garbage":
			r.Resource.Value = []byte{0xff}
		case word == "misfit":
			// A name, and a field that should be a message and is none.
			num := protowire.Number(2)
			if typ == "cds" {
				num = 4
			}
			r.Resource.Value = appendText(appendText(nil, 1, name), num, "\xff")
		case word == "good", word == "for-grpc", word == "for-envoy":
			kind = word
		case word == "undecodable":
			broken = func(delta bool) []byte {
				if !delta {
					return []byte{0xff}
				}
				b := appendText(nil, wire.ResourceName, name)
				return appendText(b, wire.ResourceAny, "\xff")
			}
		case word == "unspeakable":
			broken = func(delta bool) []byte {
				if delta {
					return appendText(nil, wire.ResourceName, "\xff")
				}
				b := appendText(nil, wire.AnyTypeURL, typeURLs["other"])
				return appendText(b, wire.AnyValue, string(appendText(nil, 1, "\xff")))
			}
		default:
			r.Version = word
		}
	}
	if r.Resource != nil && r.Resource.Value == nil {
		r.Resource.Value = value(t, typ, name, text)
	}
	if kind != "" {
		r.Resource.Value = clusterFor(t, kind, name, text)
	}
	return r, wrap, broken
}

// clusterFor encodes a Cluster that every client takes, or that only those of gRPC or of Envoy
// take.
func clusterFor(t testing.TB, kind, name, text string) []byte {
	t.Helper()
	ads := &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
	c := &clusterv3.Cluster{
		Name: name, AltStatName: text, EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads, ServiceName: name},
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
	}
	switch kind {
	case "for-envoy":
		c.LbPolicy = clusterv3.Cluster_RANDOM
	case "for-grpc":
		c.ConnectTimeout = &durationpb.Duration{}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// redirect encodes the ResourceLocator of a URL; what is none is one all the same,
// which names that authority.
func redirect(t *testing.T, url string) []byte {
	t.Helper()
	m := &xdscorev3.ResourceLocator{Authority: url}
	if u, err := urn.ParseURL(url); err == nil {
		if m, err = u.Proto(); err != nil {
			t.Fatal(err)
		}
	}
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// variantName is the name of the variant for who asks with a parameter K:V, or
// does not ask with K, if V is missing.
func variantName(name, constraint string) *discoveryv3.ResourceName {
	key, value, ok := strings.Cut(constraint, ":")
	c := is(key, value)
	if !ok {
		c = not(exists(key))
	}
	return &discoveryv3.ResourceName{Name: name, DynamicParameterConstraints: c}
}

func appendText(b []byte, num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

// value encodes a resource that has the text somewhere.
func value(t *testing.T, typ, name, text string) []byte {
	t.Helper()
	var m proto.Message
	switch typ {
	case "cds":
		m = &clusterv3.Cluster{Name: name, AltStatName: text}
	case "lds":
		m = &listenerv3.Listener{Name: name, StatPrefix: text}
	case "rds":
		m = &routev3.RouteConfiguration{Name: name}
		if text != "" {
			m.(*routev3.RouteConfiguration).InternalOnlyHeaders = []string{text}
		}
	case "eds":
		m = &endpointv3.ClusterLoadAssignment{ClusterName: name}
		if text != "" {
			m.(*endpointv3.ClusterLoadAssignment).NamedEndpoints = map[string]*endpointv3.Endpoint{text: {}}
		}
	default:
		return appendText(appendText(nil, 1, name), 2, text)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// text is the text in a resource.
func text(r *cache.Resource) string {
	f := wire.Walk(r.Value())
	text := ""
	for f.Next() {
		if f.Num == wire.InnerNameField {
			continue
		}
		inner := wire.Walk(f.Bytes)
		if strings.HasSuffix(r.TypeURL(), "LoadAssignment") && inner.Next() {
			return string(inner.Bytes)
		}
		text = string(f.Bytes)
	}
	return text
}

func (p *player) send(m proto.Message) {
	var parts []string
	add := func(what string, list []string) {
		for i, name := range list {
			list[i] = shorten(name)
		}
		parts = append(parts, fmt.Sprintf("%s=[%s]", what, strings.Join(list, " ")))
	}
	var detail *status.Status
	switch m := m.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		if m.GetTypeUrl() != typeURLs[p.typ] {
			parts = append(parts, "type="+m.GetTypeUrl())
		}
		addLocators := func(what string, list []*discoveryv3.ResourceLocator) {
			if len(list) > 0 {
				add(what, locators(list))
			}
		}
		addLocators("subscribe", m.GetResourceLocatorsSubscribe())
		addLocators("unsubscribe", m.GetResourceLocatorsUnsubscribe())
		if len(m.GetResourceNamesSubscribe()) > 0 {
			add("subscribe", slices.Clone(m.GetResourceNamesSubscribe()))
		}
		if len(m.GetResourceNamesUnsubscribe()) > 0 {
			add("unsubscribe", slices.Clone(m.GetResourceNamesUnsubscribe()))
		}
		if v := m.GetInitialResourceVersions(); len(v) > 0 {
			var known []string
			for _, name := range slices.Sorted(maps.Keys(v)) {
				known = append(known, name+"="+v[name])
			}
			add("known", known)
		}
		detail = m.GetErrorDetail()
		if m.GetResponseNonce() != "" {
			parts = append(parts, map[bool]string{true: "ACK ", false: "NACK "}[detail == nil]+m.GetResponseNonce())
		}
		if len(parts) == 0 {
			parts = append(parts, "nothing (the wildcard)")
		}
	case *discoveryv3.DiscoveryRequest:
		add("names", append(slices.Clone(m.GetResourceNames()), locators(m.GetResourceLocators())...))
		parts = append(parts, fmt.Sprintf("version=%s nonce=%s", m.GetVersionInfo(), m.GetResponseNonce()))
		if detail = m.GetErrorDetail(); detail != nil {
			parts = append(parts, "NACK")
		}
	}
	fmt.Fprintf(&p.out, "send %s\n", strings.Join(parts, " "))
	if detail != nil {
		for line := range strings.Lines(detail.GetMessage()) {
			fmt.Fprintf(&p.out, "       %s\n", shorten(strings.TrimSpace(line)))
		}
	}
}

func locators(list []*discoveryv3.ResourceLocator) (names []string) {
	for _, l := range list {
		names = append(names, l.GetName()+"{"+cache.Params(l.GetDynamicParameters()).String()+"}")
	}
	return names
}

// shorten makes long ones readable.
func shorten(s string) string {
	const long = 240
	if len(s) > long {
		return fmt.Sprintf("%s...(%d bytes)", s[:20], len(s))
	}
	return s
}

// versions prints the version of everything that is held.
func (p *player) versions() string {
	var out []string
	for k := range p.of.each {
		for sub := range k.all() {
			origin, holds := sub.answer.Origin, sub.answer.Resource != nil
			if isSet(sub.name) {
				origin, holds = p.of.sets.find(sub.name).origin, true
			}
			if sub.answered && holds {
				out = append(out, sub.name+"@"+origin.Latest())
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (p *player) print(u cache.Update) {
	for _, c := range u.Changes {
		fmt.Fprintf(&p.out, "update %s: %s\n", shorten(c.Name), change(c))
	}
	for _, set := range u.Sets {
		if set.Err != nil {
			fmt.Fprintf(&p.out, "update set %s: failed: %s\n", set.Name, set.Err)
			continue
		}
		fmt.Fprintf(&p.out, "update set %s:", set.Name)
		if set.Full {
			fmt.Fprintf(&p.out, " full, version=%s", set.Origin.Latest())
		}
		if set.Complete {
			fmt.Fprint(&p.out, " complete")
		}
		if set.Partial {
			fmt.Fprint(&p.out, " partial")
		}
		if p.answers {
			fmt.Fprint(&p.out, map[cache.Answer]string{cache.FirstAnswer: " (first answer)", cache.LaterAnswer: " (later answer)", cache.NoAnswer: " (no answer)"}[set.Answer])
		}
		fmt.Fprintln(&p.out)
		for _, c := range set.Changes {
			fmt.Fprintf(&p.out, "       %s: %s\n", shorten(c.Name), change(c))
			if p.answers && c.Answer != cache.NoAnswer {
				fmt.Fprintln(&p.out, "         (later answer)")
			}
		}
	}
}

func change(c cache.Change) string {
	var parts []string
	switch {
	case c.Resource != nil:
		r := c.Resource
		if len(r.Version()) == 16 {
			parts = append(parts, "(hash)")
		} else {
			parts = append(parts, r.Version())
		}
		if r.Redirect() != "" {
			parts = append(parts, "redirect to "+r.Redirect())
		} else if s := text(r); s != "" {
			parts = append(parts, strconv.Quote(shorten(s)))
		}
		if r.TTL() > 0 {
			parts = append(parts, "ttl="+r.TTL().String())
		}
		if r.Name() != c.Name {
			parts = append(parts, "named "+r.Name())
		}
	case c.Err != nil && !c.Gone && c.Err.Unanswered:
		parts = append(parts, "silent:")
	case c.Err != nil && !c.Gone:
		parts = append(parts, "failed:")
	default:
		parts = append(parts, "absent")
	}
	if c.Err != nil {
		parts = append(parts, c.Err.Error())
	}
	return strings.Join(parts, " ")
}
