package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// The tests of polling run in a synctest bubble, over HTTP in memory: time is the
// bubble's.

// restBench is a control plane that is polled, whose answers a test gives.
type restBench struct {
	*separate
	requests chan *restRequest
	conns    int // that were made; mu guards it
}

// restRequest is one poll.
type restRequest struct {
	*discoveryv3.DiscoveryRequest
	text   string
	http   *http.Request
	at     time.Time
	answer chan restAnswer
	gone   <-chan struct{} // closed when it was given up, or is answered
}

// hangUp, as a status, closes the connection instead.
const hangUp = 0

type restAnswer struct {
	status int
	body   string
}

func runREST(t *testing.T, o Options, ro RESTOptions, test func(*restBench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &restBench{separate: &separate{bench: &bench{T: t, logs: &logBuffer{}}}, requests: make(chan *restRequest, 100)}
		defer b.serve(o, ro, http.HandlerFunc(b.handle))()
		test(b)
	})
}

// serve connects a cache to a server. It returns what ends both.
func (b *restBench) serve(o Options, ro RESTOptions, handler http.Handler) (stop func()) {
	lis := newPipes()
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(lis) }()
	ro.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		b.mu.Lock()
		b.conns++
		err := b.dial
		b.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return lis.dial(ctx)
	}
	conn := DialREST("cp.example.com:80", ro)
	conn.transport.IdleConnTimeout = 0
	o.Protocol = REST
	b.feed(conn, o)
	return func() {
		b.stop()
		_ = conn.Close()
		_ = server.Close()
	}
}

func (b *restBench) handle(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	req := &restRequest{
		DiscoveryRequest: &discoveryv3.DiscoveryRequest{}, text: string(text), http: r,
		at: time.Now(), answer: make(chan restAnswer), gone: r.Context().Done(),
	}
	if err := protojson.Unmarshal(text, req.DiscoveryRequest); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.requests <- req
	select {
	case a := <-req.answer:
		if a.status == hangUp {
			conn, _, _ := w.(http.Hijacker).Hijack()
			_ = conn.Close()
			return
		}
		w.Header().Set("Location", "http://elsewhere.example.com/") // not to be followed
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, a.body)
	case <-req.gone:
	}
}

// next waits for the next poll.
func (b *restBench) next() *restRequest {
	b.Helper()
	select {
	case r := <-b.requests:
		return r
	case <-time.After(24 * time.Hour):
		b.Fatal("nothing was asked")
		return nil
	}
}

// none checks that there is no poll for a while.
func (b *restBench) none(d time.Duration) {
	b.Helper()
	pass(d)
	if len(b.requests) > 0 {
		b.Errorf("asked: %s", (<-b.requests).text)
	}
}

// reply answers a poll, and waits for the effects.
func (r *restRequest) reply(status int, body string) {
	select {
	case r.answer <- restAnswer{status, body}:
	case <-r.gone:
		panic("the poll was given up: " + r.text)
	}
	synctest.Wait()
}

// pipes is a listener in memory. (That of gRPC's tests has deadlines that may fire
// after they were taken back, which net/http does at each request.)
type pipes struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (*pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// want compares a poll with what is wanted, in the form names@version.
func (b *restBench) wantAsked(r *restRequest, want string) {
	b.Helper()
	if got := strings.Join(r.GetResourceNames(), ",") + "@" + r.GetVersionInfo(); got != want {
		b.Errorf("asked for %s, want %s", got, want)
	}
}

// answerOf is a DiscoveryResponse in JSON, with resources in which something is.
func answerOf(t *testing.T, typ, version, text string, names ...string) string {
	t.Helper()
	m := &discoveryv3.DiscoveryResponse{VersionInfo: version, TypeUrl: typeURLs[typ]}
	for _, name := range names {
		m.Resources = append(m.Resources, &anypb.Any{TypeUrl: typeURLs[typ], Value: value(t, typ, name, text)})
	}
	return toJSON(t, m)
}

func toJSON(t testing.TB, m proto.Message) string {
	t.Helper()
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPollsAndKeepsWhatItHas(t *testing.T) {
	runREST(t, Options{}, RESTOptions{PollInterval: 10 * time.Second, UserAgent: "xds-relay/test"}, func(b *restBench) {
		set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		r := b.next()
		if r.http.Method != "POST" || r.http.URL.Path != "/v3/discovery:clusters" || r.http.Host != "cp.example.com:80" ||
			r.http.Header.Get("Content-Type") != "application/json" || r.http.UserAgent() != "xds-relay/test" {
			t.Errorf("asked with %s %s %v", r.http.Method, r.http.URL, r.http.Header)
		}
		if r.GetNode().GetId() != "relay" || r.GetTypeUrl() != typeURLs["cds"] || !strings.Contains(r.text, `"type_url"`) {
			t.Errorf("asked for %s", r.text)
		}
		b.wantAsked(r, "@")
		if got, want := b.statuses(), "Cluster rest false 1"; got != want {
			t.Errorf("before an answer the status is %s, want %s", got, want)
		}
		r.reply(200, answerOf(t, "cds", "1", "1", "a", "b"))
		if got := members(set); got != "present [a=1 b=1]" {
			t.Errorf("the set is %s", got)
		}
		if got, want := b.statuses(), "Cluster rest true 1"; got != want {
			t.Errorf("then it is %s, want %s", got, want)
		}

		// Each poll is by itself: the Node is in all, and the version that is held.
		second := b.next()
		if d := second.at.Sub(r.at); d < 9*time.Second || d > 10*time.Second {
			t.Errorf("asked again after %s, want 9 to 10 s", d)
		}
		if second.GetNode().GetId() != "relay" {
			t.Errorf("asked for %s", second.text)
		}
		b.wantAsked(second, "@1")
		second.reply(304, "")
		if got := members(set); got != "present [a=1 b=1]" {
			t.Errorf("after 304 the set is %s", got)
		}
		// A control plane that does not compare versions answers the same once more.
		third := b.next()
		b.wantAsked(third, "@1")
		third.reply(200, answerOf(t, "cds", "1", "1", "a", "b"))
		if n := b.streams.Statuses()[0].Responses; n != 1 {
			t.Errorf("%d responses, want 1: the others say nothing new", n)
		}
		fourth := b.next()
		fourth.reply(200, answerOf(t, "cds", "2", "2", "b", "c"))
		if got := members(set); got != "present [b=2 c=2]" {
			t.Errorf("then the set is %s", got)
		}
		b.wantAsked(b.next(), "@2")
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.conns != 1 {
			t.Errorf("%d connections, want 1", b.conns)
		}
	})
}

// TestPollsWithNewNamesAtOnce: control planes that look at the version alone would
// say that there is nothing new, so it is left out.
func TestPollsWithNewNamesAtOnce(t *testing.T) {
	runREST(t, Options{}, RESTOptions{PollInterval: time.Hour}, func(b *restBench) {
		w := &watcher{}
		a, _ := b.cache.Watch(key("eds", "a"), w)
		r := b.next()
		b.wantAsked(r, "a@")
		r.reply(200, answerOf(t, "eds", "1", "1", "a"))
		b.wantText(a, "1")

		begin := time.Now()
		c := b.watch("eds", "c")["c"]
		r = b.next()
		if d := r.at.Sub(begin); d > 0 {
			t.Errorf("asked %s later", d)
		}
		b.wantAsked(r, "a,c@")
		r.reply(200, answerOf(t, "eds", "1", "1", "a", "c"))
		b.wantText(c, "1")

		// If a name is given up, the poll has the version: nothing can be new.
		b.cache.Unwatch(w)
		r = b.next()
		b.wantAsked(r, "c@1")
		r.reply(304, "")
		b.wantText(c, "1")
		b.none(30 * time.Minute)
	})
}

// TestHeldPollIsReplaced: of a control plane that holds requests (long polling).
func TestHeldPollIsReplaced(t *testing.T) {
	runREST(t, Options{}, RESTOptions{PollInterval: 5 * time.Second, RequestTimeout: 5 * time.Minute}, func(b *restBench) {
		a := b.watch("eds", "a")["a"]
		r := b.next()
		r.reply(200, answerOf(t, "eds", "1", "1", "a"))
		held := b.next()
		b.wantAsked(held, "a@1")
		pass(2 * time.Minute)
		begin := time.Now()
		held.reply(200, answerOf(t, "eds", "2", "2", "a"))
		b.wantText(a, "2")
		// It was held for longer than the interval, so the next is made at once.
		held = b.next()
		if d := held.at.Sub(begin); d > 0 {
			t.Errorf("asked %s later", d)
		}
		b.wantAsked(held, "a@2")

		pass(time.Minute)
		begin = time.Now()
		c := b.watch("eds", "c")["c"]
		replacing := b.next()
		if d := replacing.at.Sub(begin); d > 0 {
			t.Errorf("replaced %s later", d)
		}
		<-held.gone
		b.wantAsked(replacing, "a,c@")
		replacing.reply(200, answerOf(t, "eds", "2", "2", "a", "c"))
		b.wantText(c, "2")
		if st := b.streams.Statuses()[0]; !st.Connected || st.LastError != "" {
			t.Errorf("status %+v", st)
		}
	})
}

// TestNamesThatKeepComingDoNotKeepAnswersAway: a request gets some time to
// be answered before a newer one replaces it.
func TestNamesThatKeepComingDoNotKeepAnswersAway(t *testing.T) {
	runREST(t, Options{}, RESTOptions{PollInterval: 5 * time.Second}, func(b *restBench) {
		entries := b.watch("eds", "n00")
		r := b.next()
		for i := range 20 {
			pass(holdUnknown / 40)
			name := fmt.Sprintf("n%02d", i+1)
			entries[name] = b.watch("eds", name)[name]
		}
		synctest.Wait()
		if len(b.requests) > 0 {
			t.Fatal("the request was replaced too early")
		}
		r.reply(200, answerOf(t, "eds", "1", "1", "n00"))
		b.wantText(entries["n00"], "1")
		r = b.next()
		if len(r.GetResourceNames()) != 21 || r.GetVersionInfo() != "" {
			t.Errorf("then asked for %s", r.text)
		}
		// This one is held.
		b.watch("eds", "o")
		b.none(holdUnknown - time.Millisecond)
		pass(time.Millisecond)
		<-r.gone
		if r = b.next(); len(r.GetResourceNames()) != 22 {
			t.Errorf("then asked for %s", r.text)
		}
	})
}

func TestSilenceBeforeAnAnswerSaysNothing(t *testing.T) {
	runREST(t, Options{}, RESTOptions{}, func(b *restBench) {
		e := b.watch("eds", "a", "b")
		r := b.next()
		pass(40 * time.Second)
		b.want(e["a"], "requested")
		r.reply(200, answerOf(t, "eds", "1", "1", "a"))
		b.wantText(e["a"], "1")
		b.want(e["b"], "absent") // it has had 15 s, and now there is an answer without it
	})
	// An answer that has nothing new is one too.
	runREST(t, Options{}, RESTOptions{}, func(b *restBench) {
		e := b.watch("eds", "a")
		b.next().reply(304, "")
		pass(16 * time.Second)
		b.want(e["a"], "absent")
	})
	// As in SotW: an answer without a name may come before one with it.
	runREST(t, Options{}, RESTOptions{}, func(b *restBench) {
		e := b.watch("eds", "a", "b")
		b.next().reply(200, answerOf(t, "eds", "1", "1", "a"))
		pass(10 * time.Second)
		b.want(e["b"], "requested")
		b.next().reply(304, "")
		pass(10 * time.Second)
		b.want(e["b"], "absent")
	})
}

func TestFailedPollSendsTheErrorToWaitingTopics(t *testing.T) {
	for _, tt := range []struct {
		name string
		fail func(*restBench, *restRequest)
		want string
	}{
		{"status", func(_ *restBench, r *restRequest) { r.reply(500, "no\n  such snapshot\n") },
			"POST http://cp.example.com:80/v3/discovery:endpoints: 500 Internal Server Error: no such snapshot"},
		{"a status in JSON", func(_ *restBench, r *restRequest) { r.reply(503, `{"code": 14, "message": "no such snapshot"}`) }, "503 Service Unavailable: no such snapshot"},
		{"a response with the wrong status", func(_ *restBench, r *restRequest) { r.reply(203, `{"resources": [{"inline_string": "hush"}]}`) }, "203 Non-Authoritative Information: (the answer is not shown, as it may hold a secret)"},
		{"a private key", func(_ *restBench, r *restRequest) { r.reply(500, "-----BEGIN PRIVATE KEY-----\nhush") }, "500 Internal Server Error: [redacted]"},
		{"empty", func(_ *restBench, r *restRequest) { r.reply(404, "") }, "404 Not Found"},
		{"redirect", func(_ *restBench, r *restRequest) { r.reply(302, "") }, "302 Found"},
		{"long", func(_ *restBench, r *restRequest) { r.reply(500, strings.Repeat("x", 1<<20)) }, strings.Repeat("x", maxErrorBody)},
		{"no JSON", func(_ *restBench, r *restRequest) { r.reply(200, "<html>") }, "no DiscoveryResponse in JSON"},
		{"no object", func(_ *restBench, r *restRequest) { r.reply(200, "[]") }, "no DiscoveryResponse in JSON: not an object"},
		{"another type", func(_ *restBench, r *restRequest) { r.reply(200, answerOf(t, "cds", "1", "1", "a")) }, "is of type"},
		{"too long", func(_ *restBench, r *restRequest) { r.reply(200, `{"version_info":"`+strings.Repeat("x", 10000)+`"}`) }, "the answer is longer than 5000 bytes"},
		{"silence", func(*restBench, *restRequest) { pass(time.Minute) }, "no answer for 1m0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runREST(t, Options{}, RESTOptions{MaxResponseBytes: 5000}, func(b *restBench) {
				e := b.watch("eds", "a")["a"]
				tt.fail(b, b.next())
				synctest.Wait()
				b.wantFailed("the name", e.State().Err, codes.Unavailable, tt.want)
				if len(e.State().Err.Message) > 2*maxErrorBody {
					t.Errorf("an error of %d bytes", len(e.State().Err.Message))
				}
				// It is tried again, and goes on.
				r := b.next()
				b.wantAsked(r, "a@")
				r.reply(200, answerOf(t, "eds", "1", "1", "a"))
				b.wantText(e, "1")
			})
		})
	}
}

// A server may close a connection because it was idle, just as the next request
// comes.
func TestConnectionThatWasClosedMeanwhileIsNoFailure(t *testing.T) {
	runREST(t, Options{}, RESTOptions{}, func(b *restBench) {
		e := b.watch("eds", "a")["a"]
		b.next().reply(200, answerOf(t, "eds", "1", "1", "a"))
		begin := b.next()
		begin.reply(hangUp, "")
		again := b.next()
		if d := again.at.Sub(begin.at); d > 0 {
			t.Errorf("asked again after %s", d)
		}
		again.reply(200, answerOf(t, "eds", "2", "2", "a"))
		b.wantText(e, "2")
		if st := b.streams.Statuses()[0]; st.LastError != "" {
			t.Errorf("status %+v", st)
		}
	})
}

func TestWhatIsHeldStaysWhenPollsFail(t *testing.T) {
	runREST(t, Options{BackoffBase: time.Second, BackoffMax: 8 * time.Second}, RESTOptions{}, func(b *restBench) {
		set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		b.next().reply(200, answerOf(t, "cds", "1", "1", "a"))
		b.next().reply(304, "")
		for range 3 {
			b.next().reply(503, "busy")
		}
		if got := members(set); got != "present [a=1]" {
			t.Errorf("the set is %s", got)
		}
		if st := b.streams.Statuses()[0]; st.Connected || !strings.Contains(st.LastError, "503") {
			t.Errorf("status %+v", st)
		}
		// The version that is held goes with the first request, and nothing new is
		// as good as an answer: backoff is reset.
		r := b.next()
		b.wantAsked(r, "@1")
		r.reply(304, "")
		if st := b.streams.Statuses()[0]; !st.Connected {
			t.Errorf("status %+v", st)
		}
		r = b.next()
		r.reply(500, "")
		begin := time.Now()
		b.wantAsked(b.next(), "@1")
		if d := time.Since(begin); d > time.Second {
			t.Errorf("tried again after %s, want at most 1 s", d)
		}
		if n := b.logs.count("control plane lost"); n == 0 {
			t.Error("not logged")
		}
	})
}

func TestBadResourceIsRejectedAloneWithTheNextPoll(t *testing.T) {
	runREST(t, Options{}, RESTOptions{PollInterval: 5 * time.Second}, func(b *restBench) {
		set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		b.next().reply(200, answerOf(t, "cds", "1", "1", "a", "b"))
		bad := `{"versionInfo": "2", "resources": [
			{"@type": "` + typeURLs["cds"] + `", "name": "a", "alt_stat_name": "2"},
			{"@type": "` + typeURLs["cds"] + `", "name": "b", "typed_extension_protocol_options": {"x": {"@type": "made.up/of.nothing", "a": 1}}}
		]}`
		r := b.next()
		r.reply(200, bad)
		if got := members(set); got != "present [a=2 b=1]" {
			t.Errorf("the set is %s", got)
		}
		nack := b.next()
		if d := nack.at.Sub(r.at); d < 4*time.Second {
			t.Errorf("rejected after %s, which makes a loop", d)
		}
		b.wantAsked(nack, "@1")
		if got, want := nack.GetErrorDetail().GetMessage(), `resources[1] "b" cannot be read: unable to resolve "made.up/of.nothing"`; got != want {
			t.Errorf("the reason is %q, want %q", got, want)
		}
		// The same again is not new, and stays rejected.
		nack.reply(200, bad)
		nack = b.next()
		if nack.GetErrorDetail() == nil || b.streams.Statuses()[0].Nacks != 1 {
			t.Errorf("asked with %s; %d NACKs", nack.text, b.streams.Statuses()[0].Nacks)
		}
		// The control plane goes back to the accepted version. The relay does not hold all of that
		// any more, so it polls without a version.
		begin := time.Now()
		nack.reply(304, "")
		r = b.next()
		if d := r.at.Sub(begin); d > 0 || r.GetErrorDetail() != nil {
			t.Errorf("asked after %s with %s", d, r.text)
		}
		b.wantAsked(r, "@")
		r.reply(200, answerOf(t, "cds", "1", "1", "a", "b"))
		if got := members(set); got != "present [a=1 b=1]" {
			t.Errorf("the set is %s", got)
		}
		r = b.next()
		b.wantAsked(r, "@1")
		if r.GetErrorDetail() != nil {
			t.Errorf("asked with %s", r.text)
		}
	})
}

// TestTTLIsRenewedByPolls: the answer that nothing is new would not renew the TTL.
func TestTTLIsRenewedByPolls(t *testing.T) {
	runREST(t, Options{}, RESTOptions{PollInterval: 5 * time.Second}, func(b *restBench) {
		answer := `{"version_info": "1", "resources": [{"@type": "` + xdstype.Wrapper + `", "name": "a", "ttl": "12s", "resource":
			{"@type": "` + typeURLs["eds"] + `", "cluster_name": "a", "named_endpoints": {"1": {}}}}]}`
		e := b.watch("eds", "a")["a"]
		for range 10 {
			r := b.next()
			b.wantAsked(r, "a@")
			r.reply(200, answer)
			b.wantText(e, "1")
		}
		b.next() // which is not answered
		pass(12 * time.Second)
		b.want(e, "absent")
	})
}

func TestDoNotCacheIsRequestedAgain(t *testing.T) {
	runREST(t, Options{}, RESTOptions{PollInterval: time.Hour}, func(b *restBench) {
		answer := `{"version_info": "1", "resources": [{"@type": "` + xdstype.Wrapper + `", "name": "a", "cache_control": {"do_not_cache": true},
			"resource": {"@type": "` + typeURLs["eds"] + `", "cluster_name": "a", "named_endpoints": {"%s": {}}}}]}`
		e := b.watch("eds", "a")["a"]
		b.next().reply(200, fmt.Sprintf(answer, "1"))
		b.wantText(e, "1")
		begin := time.Now()
		b.watch("eds", "a")
		r := b.next()
		if d := r.at.Sub(begin); d > 0 {
			t.Errorf("asked %s later", d)
		}
		b.wantAsked(r, "a@")
		r.reply(200, fmt.Sprintf(answer, "2"))
		b.wantText(e, "2")
	})
}

func TestPollWithoutVersionsTakesWhatIsNew(t *testing.T) {
	runREST(t, Options{}, RESTOptions{}, func(b *restBench) {
		set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		b.next().reply(200, answerOf(t, "cds", "", "1", "a"))
		b.next().reply(200, answerOf(t, "cds", "", "2", "a", "b"))
		if got := members(set); got != "present [a=2 b=2]" {
			t.Errorf("the set is %s", got)
		}
	})
}

// TestPollingEndsWithTheLastName: names that are not wanted any more must not turn
// into the wildcard, which no names are.
func TestPollingEndsWithTheLastName(t *testing.T) {
	runREST(t, Options{}, RESTOptions{}, func(b *restBench) {
		w := &watcher{}
		b.cache.Watch(key("cds", "a"), w)
		b.next().reply(200, answerOf(t, "cds", "1", "1", "a"))
		held := b.next()
		b.cache.Unwatch(w)
		pass(time.Minute - time.Nanosecond)
		for len(b.requests) > 0 {
			held = b.next()
		}
		b.wantAsked(held, "a@1")
		b.none(time.Hour)
		<-held.gone
		if got := b.statuses(); got != "" {
			t.Errorf("status %s", got)
		}
		// And a wildcard after that is one.
		b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		b.wantAsked(b.next(), "@")
	})
}

// A wildcard that comes after names has a stream of its own, as elsewhere, and the
// names go on from where they are.
func TestPollForAWildcardAfterNames(t *testing.T) {
	runREST(t, Options{}, RESTOptions{}, func(b *restBench) {
		b.watch("cds", "a")
		b.next().reply(200, answerOf(t, "cds", "1", "1", "a"))
		set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		for range 2 { // in any order
			r := b.next()
			if len(r.GetResourceNames()) > 0 {
				b.wantAsked(r, "a@1")
				continue
			}
			b.wantAsked(r, "@")
			r.reply(200, answerOf(t, "cds", "1", "1", "a", "b"))
		}
		if got := members(set); got != "present [a=1 b=1]" {
			t.Errorf("the set is %s", got)
		}
	})
}

// Globs are fed from the wildcard, as everywhere in SotW, and redirects are kept.
func TestPollForGlobs(t *testing.T) {
	runREST(t, Options{}, RESTOptions{}, func(b *restBench) {
		foo := b.cache.WatchSet(key("cds", "xdstp://auth/t/foo/*"), &setWatcher{})
		bar := b.cache.WatchSet(key("cds", "xdstp://auth/t/bar/*"), &setWatcher{})
		r := b.next()
		b.wantAsked(r, "@")
		r.reply(200, answerOf(t, "cds", "1", "1", "xdstp://auth/t/foo/1", "xdstp://auth/t/other/1"))
		if got := members(foo) + ", " + members(bar); got != "present [], present []" || foo.Len() != 1 || bar.Len() != 0 || text(foo.Member("xdstp://auth/t/foo/1")) != "1" {
			t.Errorf("the sets are %s, of %d and %d", got, foo.Len(), bar.Len())
		}
		b.next().reply(200, `{"version_info": "2", "resources": [{"@type": "`+xdstype.Wrapper+`", "name": "xdstp://auth/t/bar/1", "resource":
			{"@type": "`+xdstype.Locator+`", "authority": "b", "resource_type": "envoy.config.cluster.v3.Cluster", "id": "x"}}]}`)
		if got := members(foo); got != "present []" || foo.Len() != 0 {
			t.Errorf("the set is %s, of %d", got, foo.Len())
		}
		if r := bar.Member("xdstp://auth/t/bar/1"); r == nil || r.Redirect() != "xdstp://b/envoy.config.cluster.v3.Cluster/x" {
			t.Errorf("got %v", r)
		}
	})
}

func TestTypesArePolledApart(t *testing.T) {
	runREST(t, Options{}, RESTOptions{}, func(b *restBench) {
		c := b.watch("cds", "a")["a"]
		e := b.watch("eds", "a")["a"]
		for range 2 {
			if r := b.next(); r.GetTypeUrl() == typeURLs["cds"] {
				r.reply(500, "not clusters")
			} else {
				r.reply(200, answerOf(t, "eds", "1", "1", "a"))
			}
		}
		b.wantText(e, "1")
		b.wantFailed("the cluster", c.State().Err, codes.Unavailable, "not clusters")
	})
}

// TestGoControlPlanesGateway is against a control plane that others wrote.
func TestGoControlPlanesGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		defer p.cancel()
		gateway := serverv3.HTTPGateway{Server: p.server.(serverv3.Server)}
		b := &restBench{separate: &separate{bench: &bench{T: t, logs: &logBuffer{}}}}
		defer b.serve(Options{}, RESTOptions{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, code, err := gateway.ServeHTTP(r)
			if err != nil {
				body = []byte(err.Error())
			}
			w.WriteHeader(code)
			_, _ = w.Write(body)
		}))()
		p.set(t, "1", map[string]string{"a": "1", "b": "1"})
		set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		e := b.watch("eds", "a")
		if got := members(set); got != "present [a=1 b=1]" {
			t.Errorf("the set is %s", got)
		}
		b.wantText(e["a"], "1")
		p.set(t, "2", map[string]string{"a": "1", "b": "2", "c": "2"})
		pass(5 * time.Second)
		if got := members(set); got != "present [a=1 b=2 c=2]" {
			t.Errorf("then the set is %s", got)
		}
		// It does not answer for a new name, unless the poll has no version.
		late := b.watch("eds", "c")
		b.wantText(late["c"], "2")
		if st := b.streams.Statuses(); len(st) != 2 || !st[0].Connected || !st[1].Connected {
			t.Errorf("statuses %+v", st)
		}
	})
}

func TestDecodeJSON(t *testing.T) {
	cds := `"@type": "` + typeURLs["cds"] + `"`
	wrapper := `"@type": "` + xdstype.Wrapper + `"`
	for _, tt := range []struct {
		name, text string
		want       string // names, or the name and why not
	}{
		{"camel case", `{"versionInfo": "1", "typeUrl": "` + typeURLs["cds"] + `", "resources": [{` + cds + `, "name": "a"}]}`, "1 a"},
		{"names of the proto file", `{"version_info": "1", "type_url": "` + typeURLs["cds"] + `", "resources": [{` + cds + `, "name": "a"}]}`, "1 a"},
		{"nothing", `{}`, ""},
		{"nulls", `{"version_info": null, "resources": null, "nonce": null}`, ""},
		{"unknown outside", `{"version_info": "1", "new_field": {"@type": "made.up/x"}, "canary": true}`, "1"},
		{"wrapped", `{"resources": [{` + wrapper + `, "name": "w", "version": "7", "aliases": ["x"], "resource": {` + cds + `, "name": "a"}}]}`, " w/7"},
		{"heartbeat", `{"resources": [{` + wrapper + `, "name": "w", "version": "7", "ttl": "5s"}]}`, " w/7 without"},
		{"bad inside a good name", `{"resources": [{` + cds + `, "name": "a", "altStatName": 1}, {` + cds + `, "name": "b"}]}`, ` a!invalid value for string field altStatName b`},
		{"unknown inside", `{"resources": [{` + cds + `, "name": "a", "nope": 1}, {` + cds + `, "name": "b"}]}`, ` a b, without nope of "a": Cluster has no such field`},
		{"an enum in lower case, and one element in place of a list", `{"resources": [{` + cds + `, "name": "a", "type": "strict_dns", "health_checks": {"alt_port": 1}}]}`, " a"},
		{"bad inside a wrapper", `{"resources": [{` + wrapper + `, "name": "w", "resource": {"@type": "made.up/x"}}]}`, ` w!unable to resolve "made.up/x"`},
		{"bad inside a nameless wrapper", `{"resources": [{` + wrapper + `, "resource": {` + cds + `, "name": "a", "altStatName": 1}}]}`, ` a!invalid value for string field altStatName`},
		{"EDS has another name", `{"resources": [{"@type": "` + typeURLs["eds"] + `", "clusterName": "e", "endpoints": "nope"}]}`, ` e!not the JSON form of its type`},
		{"EDS in the proto file's", `{"resources": [{"@type": "` + typeURLs["eds"] + `", "cluster_name": "e", "endpoints": "nope"}]}`, ` e!not the JSON form of its type`},
		{"a redirect", `{"resources": [{` + wrapper + `, "name": "w", "resource": {"@type": "` + xdstype.Locator + `", "authority": "b", "resource_type": "t", "id": "x"}}]}`, " w"},
		{"a redirect without a name", `{"resources": [{"@type": "` + xdstype.Locator + `", "scheme": "HTTP", "id": 1}]}`, ` !invalid value for string field id`},
		{"its name is bad", `{"resources": [{` + cds + `, "name": 5}]}`, ` !invalid value for string field name`},
		{"not an object", `{"resources": [5, null, {}, []]}`, " !not the JSON form of its type !not the JSON form of its type  !not the JSON form of its type"},
		{"a secret is not quoted", `{"resources": [{` + cds + `, "name": "a", "connectTimeout": "hush hush"}]}`, " a!not the JSON form of its type"},
		{"another secret", `{"resources": [{` + cds + `, "name": "a", "lb_policy": "hush hush"}]}`, ` a, without lb_policy of "a": LbPolicy has no value of that name`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := parseJSON([]byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			r, err := a.decode(a.typeURL)
			if err != nil {
				t.Fatal(err)
			}
			got := []string{r.Version}
			for _, res := range r.Resources {
				text := res.Name
				if res.Version != "" {
					text += "/" + res.Version
				}
				if res.Err != nil {
					text += "!" + res.Err.Error()
				} else if !res.Present {
					text += " without"
				}
				got = append(got, text)
			}
			text := strings.Join(got, " ")
			if r.Ignored != "" {
				text += ", without " + r.Ignored
			}
			if text != tt.want {
				t.Errorf("got %q, want %q", text, tt.want)
			}
		})
	}
}

func TestDecodeJSONResourceErrors(t *testing.T) {
	a, err := parseJSON([]byte(`{"resource_errors": [
		{"resource_name": {"name": "x"}, "error_detail": {"code": 5, "message": "gone", "details": [{"@type": "made.up/x"}]}},
		{"resourceName": {"name": "y"}}, {}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.decode("t")
	if err != nil || len(r.Errors) != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	if e := r.Errors[0]; e.Name.Name != "x" || e.Err.Code != codes.NotFound || e.Err.Message != "gone" {
		t.Errorf("%+v", e)
	}
	if e := r.Errors[1]; e.Name.Name != "y" || e.Err.Code != codes.OK {
		t.Errorf("%+v", e)
	}
}

func TestParseJSONSaysWhatIsWrong(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{`{"version_info": 5}`, "version_info is a JSON number"},
		{`{"version_info": "1", "versionInfo": "2"}`, "version_info occurs twice, also as versionInfo"},
		{`{"resources": {}}`, "resources is a JSON object"},
		{`{"resources": [}`, "invalid character '}'"},
		{`null`, "not an object"},
		{``, "unexpected end"},
		{strings.Repeat("[", 1<<20), "exceeded max depth"},
	} {
		if _, err := parseJSON([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.40s: %v, want %s", tt.text, err, tt.want)
		}
	}
	for _, tt := range []struct{ text, want string }{
		{`{"resource_errors": [5]}`, "resource_errors[0]: not an object"},
		{`{"resource_errors": [{}, {"error_detail": {"code": "no"}}]}`, "resource_errors[1]: invalid value for int32 field code"},
		{`{"type_url": "other"}`, `is of type "other" (want "t", as requested)`},
	} {
		a, err := parseJSON([]byte(tt.text))
		if err == nil {
			_, err = a.decode("t")
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.text, err, tt.want)
		}
	}
}

// nackOf returns why a response to a wildcard is not accepted.
func nackOf(r *session.Response) string {
	_, s := wildcard(session.SotW, cache.Scope{}, typeURLs["cds"])
	_, nack := s.Response(t0, r)
	return nack
}

// FuzzJSON holds that no body makes the relay panic, and that good resources
// survive whatever else is in the response.
func FuzzJSON(f *testing.F) {
	cds := `{"@type": "` + typeURLs["cds"] + `", "name": "a"}`
	f.Add([]byte(cds))
	f.Add([]byte(`{"@type": "` + xdstype.Wrapper + `", "name": "w", "ttl": "5s", "resource": ` + cds + `}`))
	f.Add([]byte(`{"@type": "made.up/x"}`))
	f.Add([]byte(`{"version_info": "1", "resources": [` + cds + `], "resource_errors": [{"resource_name": {"name": "x"}, "error_detail": {"code": 5}}]}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`[[["`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if a, err := parseJSON(text); err == nil {
			if r, err := a.decode(typeURLs["cds"]); err == nil {
				r.TypeURL = typeURLs["cds"]
				nackOf(r)
			}
		}
		if !json.Valid(text) {
			return
		}
		// As one resource among good ones.
		body := bytes.Join([][]byte{[]byte(`{"resources": [` + strings.ReplaceAll(cds, `"a"`, `"first good"`) + `,`), text,
			[]byte(`,` + strings.ReplaceAll(cds, `"a"`, `"last good"`) + `]}`)}, nil)
		a, err := parseJSON(body)
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		r, err := a.decode(typeURLs["cds"])
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		names := []string{}
		for i := range r.Resources {
			names = append(names, r.Resources[i].Name)
		}
		for _, good := range []string{"first good", "last good"} {
			if n := slices.Index(names, good); n < 0 || r.Resources[n].Err != nil {
				t.Errorf("%q has not survived %s", good, text)
			}
		}
		nack := nackOf(r)
		for i := range r.Resources {
			if r.Resources[i].Err != nil && nack == "" {
				t.Errorf("bad and accepted: %s", text)
			}
		}
	})
}

// TestWrapperInJSONIsThatOfTheWire: the fields of a Resource around a resource are the same as on the wire.
func TestWrapperInJSONIsThatOfTheWire(t *testing.T) {
	inner, err := anypb.New(&clusterv3.Cluster{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	outer, err := anypb.New(&discoveryv3.Resource{
		Name: "w", Version: "3", Aliases: []string{"x", "y"}, Resource: inner, Ttl: durationpb.New(time.Second),
		CacheControl: &discoveryv3.Resource_CacheControl{DoNotCache: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(outer)
	if err != nil {
		t.Fatal(err)
	}
	want := session.ParseAny(b, "")
	got, _ := decodeResource([]byte(toJSON(t, outer)))
	want.Raw, got.Raw = nil, nil
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
}
