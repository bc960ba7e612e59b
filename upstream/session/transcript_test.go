package session

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/upstream/session/sessiontest"
	"github.com/xds-relay/xds-relay/urn"
)

// TestTranscripts plays testdata/*.txt: one type of one client, without I/O.
//
//	client form=delta|sotw type=cds [limit=BYTES] [params=K:V] [noglobs] [check=warn|refuse|off] [again] [answers] [auto]
//	                                                a new client, with an open stream. noglobs: it
//	                                                does not request globs. check: what becomes of
//	                                                resources that clients would reject. again: it
//	                                                has the same control plane as the last client.
//	                                                answers: print to which answer each update of
//	                                                a set belongs. auto: in SotW, the control plane may
//	                                                answer only requests of which it has every name
//	resend                                          send everything that is held to the cache again
//	subscribe NAME... | unsubscribe NAME...         `wildcard` is *; with `quietly`,
//	                                                nothing is sent yet
//	return NAME...                                  subscribe to names of which another stream has
//	                                                brought something
//	again NAME...                                   request a subscribed name again
//	adopt NAME...                                   the first client requests a prefetched name
//	resume NAME...                                  a client holds the name's resource from an
//	                                                earlier stream
//	recall NAME@VERSION...                          resources that the relay had before it was
//	                                                started, by name or as members of a set
//	send                                            requests go out
//	response [nonce=N] [version=V] [type=T] [size=BYTES] [quietly]
//	    with the size of a response with more small resources; one line per resource, NAME followed by any of
//	        v1         its version
//	        "text"     text in its value; fill=N text of that length
//	        ttl        a TTL of one minute; ttl=2m of two
//	        nocache    do_not_cache is set
//	        match=K:V  a variant for that parameter
//	        alias=NAME an alias
//	        bodiless   without a resource in it
//	        wrapped    SotW: in a Resource
//	        unnamed    the Resource has no name
//	        type=T     of another type
//	        redirect=URL  a ResourceLocator in its place
//	        garbage    its value is no message
//	        misfit     its value is a message, but not of its type
//	        good       a Cluster that every client accepts; for-grpc, for-envoy: that only those accept
//	        undecodable, unspeakable   its Any is no message, its name is not UTF-8
//	    or `removed NAME [match=K:V]`, `error NAME CODE MESSAGE`, `complete NAME...` of a relay
//	clusters NAME...                                the control plane sends all of its Clusters; NAME/ENDPOINTS
//	                                                is one with another name of its endpoints
//	heartbeat NAME...                               the control plane sends only heartbeats of Clusters
//	overtaken                                       the control plane answers another type, which was
//	                                                requested later
//	rejected clients=N reason=WORD                  N clients reject the newest response
//	versions                                        print what is held, as name@version of the
//	                                                control plane
//	quiet                                           print what the control plane does not answer
//	after DURATION                                  time passes
//	lost                                            the stream ends
//	unreachable REASON                              the control plane cannot be reached
//	open [form=delta|sotw] [force]                  a new stream, on which the control plane has to answer
//
// Requests are printed as `send`, updates of the cache as `update`.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") {
			return
		}
		p := &player{}
		datadriven.RunTest(t, path, p.play)
	})
}

type player struct {
	sessiontest.Transcript
	habits  *Habits
	form    Form
	limit   int
	scope   cache.Scope
	noGlobs bool
	strict  Answers
	check   taster.Mode
	of      *Topics // nil until something is subscribed to
	session Session
	now     time.Time
	down    *cache.Error
	had     []*cache.Resource // before the relay was started
	// answered says that the control plane has answered on this stream, and heard when it did last.
	answered bool
	heard    time.Time
	// clusters are those of the control plane, nil before it has sent any, and ofClusters is their session.
	clusters   *Topics
	ofClusters Session
}

func (p *player) play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	p.Out.Reset()
	quiet := d.HasArg("quietly")
	d.CmdArgs = slices.DeleteFunc(d.CmdArgs, func(a datadriven.CmdArg) bool { return a.Key == "quietly" })
	var u cache.Update
	if p.of != nil {
		u = p.of.NewUpdate()
	}
	switch d.Cmd {
	case "client":
		*p = player{now: time.Unix(0, 0), limit: 1 << 20, habits: p.habits}
		d.ScanArgs(t, "type", &p.Type)
		d.MaybeScanArgs(t, "limit", &p.limit)
		params := ""
		d.MaybeScanArgs(t, "params", &params)
		p.scope = cache.Scope{Authority: "a", Params: strings.ReplaceAll(params, ":", "=")}
		if d.HasArg("auto") {
			p.strict = AnswersAuto
		}
		p.noGlobs, p.Answers = d.HasArg("noglobs"), d.HasArg("answers")
		check := "warn"
		d.MaybeScanArgs(t, "check", &check)
		p.check = map[string]taster.Mode{"warn": taster.Warn, "refuse": taster.Refuse, "off": taster.Off}[check]
		if !d.HasArg("again") {
			p.habits = new(Habits)
		}
		p.open(t, d)
		return ""
	case "subscribe":
		for _, name := range sessiontest.NamesIn(d) {
			p.prepare(t, d, name, &u)
			p.of.Start(name, p.down, &u)
		}
	case "return":
		for _, name := range sessiontest.NamesIn(d) {
			p.prepare(t, d, name, &u)
			p.of.Return(name)
		}
	case "again":
		for _, name := range sessiontest.NamesIn(d) {
			p.of.Again(name, p.down, &u)
		}
	case "resume":
		for _, name := range sessiontest.NamesIn(d) {
			p.of.Resume(name, p.now)
		}
	case "adopt":
		for _, name := range sessiontest.NamesIn(d) {
			p.of.Adopt(name, p.now, p.down, &u)
		}
	case "recall":
		for _, text := range sessiontest.NamesIn(d) {
			name, version, _ := strings.Cut(text, "@")
			p.had = append(p.had, cache.NewResource(cache.Spec{Name: name, Version: version, TypeURL: typeURLs[p.Type]}))
		}
		return ""
	case "unsubscribe":
		for _, name := range sessiontest.NamesIn(d) {
			p.of.Stop(name)
		}
	case "resend":
		u = p.of.Resend()
	case "send":
	case "response":
		var nack string
		r, err := p.form.Parse(p.Response(t, d, p.form == Delta))
		if err != nil {
			return "the stream ends: " + err.Error()
		}
		d.MaybeScanArgs(t, "size", &r.Size)
		if r.TypeURL != typeURLs[p.Type] || p.session == nil || !p.session.Begun() {
			p.answer()
			if p.session != nil {
				p.session.Heard(p.now)
			}
			return "ignored: not asked for"
		}
		p.answer()
		if u, nack = p.session.Response(p.now, r); nack != "" && quiet {
			fmt.Fprintln(&p.Out, "rejected")
		}
		r.Clear() // nothing may refer to it any more
	case "rejected":
		var r Rejection
		d.ScanArgs(t, "clients", &r.Clients)
		d.ScanArgs(t, "reason", &r.Reason)
		r.Words = fmt.Sprintf("%d clients: %s", r.Clients, r.Reason)
		p.session.PassOn(r)
	case "clusters":
		p.sendClusters(t, sessiontest.NamesIn(d), false)
	case "heartbeat":
		p.sendClusters(t, sessiontest.NamesIn(d), true)
	case "overtaken":
		p.answer()
		p.of.Sets.overtake(p.now, p.now, "")
	case "versions":
		return p.versions()
	case "quiet":
		q := p.of.Quiet()
		return fmt.Sprintf("%d topics %q, %d left out, answered %q", q.Topics, q.Newest, q.LeftOut, q.Answered)
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
		p.of.Lost()
		if d.Cmd == "unreachable" {
			p.down = &cache.Error{Code: codes.Unavailable, Message: d.CmdArgs[0].Key}
			p.of.Failed(p.down, &u)
		}
	case "open":
		p.open(t, d)
	default:
		t.Fatalf("%s: what is %q?", d.Pos, d.Cmd)
	}
	if p.of == nil {
		return ""
	}
	p.Print(u)
	for _, name := range p.of.TakeWarnings() {
		fmt.Fprintf(&p.Out, "warning: several variants of %s\n", name)
	}
	p.Print(p.of.Expire(p.now))
	if p.session != nil && !quiet {
		if p.of.NeedStream(p.session.Begun()) {
			return p.Out.String() + "a new stream is needed"
		}
		p.of.Hear(p.heard)
		p.Print(p.session.Conclude(p.now, DefaultResponseTimeout, silenceAfter(p.answered)))
		if p.form == Delta && !p.session.Begun() {
			p.of.Recall(p.recall)
		}
		for _, m := range p.session.Requests(p.now, p.limit) {
			if n := proto.Size(m); n > p.limit {
				fmt.Fprintf(&p.Out, "%d bytes: ", n)
			}
			p.Send(m)
		}
		if p.of.NeedStream(p.session.Begun()) {
			p.Out.WriteString("a new stream is needed\n")
		}
		refusals, _ := p.of.TakeRefusals()
		p.Print(refusals)
		if what := p.session.Unfit(); what != "" {
			fmt.Fprintf(&p.Out, "unfit: %s\n", what)
		}
	}
	return p.Out.String()
}

// recall yields the resources that the relay had of a topic.
func (p *player) recall(k cache.Key, yield func(string, *cache.Resource)) {
	for _, r := range p.had {
		if glob, _ := urn.GlobOf(r.Name()); k.Name == r.Name() || k.Name == cache.Wildcard || k.Name == glob {
			yield(r.Name(), r)
		}
	}
}

// sendClusters has the control plane send all of its Clusters, each with the name of its endpoints if that is another, or
// only heartbeats.
func (p *player) sendClusters(t *testing.T, all []string, heartbeat bool) {
	t.Helper()
	if p.clusters == nil {
		p.clusters = withKind(nil, p.scope, typeURLs["cds"], cache.Wildcard)
		p.clusters.Sets.answers, p.clusters.Sets.habits = p.strict, p.habits
		p.ofClusters = SotW.Begin(p.clusters)
		var u cache.Update
		p.clusters.Start(cache.Wildcard, nil, &u)
		p.ofClusters.Requests(p.now, p.limit)
	}
	r := &discoveryv3.DiscoveryResponse{TypeUrl: typeURLs["cds"]}
	for _, text := range all {
		c := &clusterv3.Cluster{}
		var service string
		if c.Name, service, _ = strings.Cut(text, "/"); service != "" {
			c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{ServiceName: service}
		}
		var m proto.Message = c
		if heartbeat {
			m = &discoveryv3.Resource{Name: c.Name, Ttl: durationpb.New(time.Minute)}
		}
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		r.Resources = append(r.Resources, a)
	}
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := SotW.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	p.answer()
	if p.session != nil {
		p.session.Heard(p.now)
	}
	if _, nack := p.ofClusters.Response(p.now, parsed); nack != "" {
		t.Fatal(nack)
	}
	if p.session != nil {
		p.session.ClustersChanged(p.now, p.clusters)
	}
}

// prepare makes room for a subscription to a name or a set.
func (p *player) prepare(t *testing.T, d *datadriven.TestData, name string, u *cache.Update) {
	t.Helper()
	began := p.of == nil
	if began || p.of.Kind(name) == nil {
		p.of = withKind(p.of, p.scope, typeURLs[p.Type], name)
		if s := p.of.Sets; s != nil {
			s.noGlobs, s.habits = p.noGlobs, p.habits
		}
		for k := range p.of.each {
			k.common().check = p.check
		}
		if n := p.of.Names; n != nil {
			n.answers, n.habits = p.strict, p.habits
		}
	}
	if began {
		*u = p.of.NewUpdate()
		p.session = p.form.Begin(p.of)
	}
	if p.of.Both() && (name == cache.Wildcard || p.form != Delta || p.of.Sets.KeepsApart()) {
		t.Fatalf("%s: names do not share a stream with a wildcard", d.Pos)
	}
}

func (p *player) open(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	if d.HasArg("form") {
		var name string
		d.ScanArgs(t, "form", &name)
		p.form = map[string]Form{"delta": Delta, "sotw": SotW}[name]
	}
	p.down, p.answered, p.heard = nil, false, time.Time{}
	if p.of != nil {
		p.session = p.form.Begin(p.of)
		if d.HasArg("force") {
			p.session.ForceAnswer()
		}
	}
}

// answer notes that the control plane has sent a response on the stream.
func (p *player) answer() {
	p.heard = p.now
	if !p.answered {
		p.answered = true
		if p.of != nil {
			p.of.WaitAgain(p.now)
		}
	}
}

// silenceAfter returns the kind of silence of a control plane that has answered on the stream, or
// has not.
func silenceAfter(answered bool) Silence {
	if answered {
		return Selective
	}
	return Mute
}

// versions prints the version of everything that is held.
func (p *player) versions() string {
	var out []string
	for k := range p.of.each {
		for sub := range k.all() {
			origin, holds := sub.answer.Origin, sub.answer.Resource != nil
			if IsSet(sub.name) {
				origin, holds = p.of.Sets.find(sub.name).origin, true
			}
			if sub.answered && holds {
				out = append(out, sub.name+"@"+origin.Latest())
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
