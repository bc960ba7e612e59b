package downstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

func TestAStreamHasABoundedNumberOfTypes(t *testing.T) {
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	c := newTestClient(server, deltaForm.name, &corev3.Node{})
	defer c.close()
	for i := range maxTypes {
		if err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: fmt.Sprint("type/", i), ResourceNamesSubscribe: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
	}
	err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type/more", ResourceNamesSubscribe: []string{"a"}})
	if want := "65 types on this stream, but the fixed limit types is 64"; status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != want {
		t.Errorf("got %v, want RESOURCE_EXHAUSTED: %s", err, want)
	}
}

func TestANodeIsBounded(t *testing.T) {
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	c := newTestClient(server, sotwForm.name, &corev3.Node{Id: strings.Repeat("x", maxNodeBytes)})
	defer c.close()
	err := c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "a node of ") {
		t.Errorf("got %v, want RESOURCE_EXHAUSTED of the node", err)
	}
}

// A client that sends faster than it may is read more slowly, and is sent no error.
func TestRequestsAreReadNoFasterThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst, perSecond, reads = 3, 10, 20
		server, log := newTestServer(nil, 0)
		// Its deadline is near, which must not end the wait before it is there.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		st := server.open(contextStream{ctx: ctx}, nil, deltaForm.name, "")
		st.limits = &Limits{RequestsPerSecond: perSecond, RequestBurst: burst}
		began := time.Now()
		for i := range reads {
			if !st.pace() {
				t.Fatal("the client has not gone")
			}
			want := time.Duration(max(i+1-burst, 0)) * time.Second / perSecond
			if got := time.Since(began).Round(time.Millisecond); got != want {
				t.Fatalf("request %d is read after %v, want %v", i+1, got, want)
			}
		}
		if got := server.Stats().Limits["requests_per_second"]; got != reads-burst {
			t.Errorf("%d requests are said to have waited, want %d", got, reads-burst)
		}
		if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "faster") {
			t.Errorf("the log has %q, want one line", lines)
		}

		time.Sleep(time.Second) // the bucket is full again
		began = time.Now()
		for range burst {
			st.pace()
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("after a pause it waits %v", waited)
		}

		cancel()
		if st.pace() {
			t.Error("a client that has gone is waited for")
		}
	})
}

// contextStream is a gRPC stream of which only the context is used.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s contextStream) Context() context.Context { return s.ctx }

// A client that rejects everything, for ever, fills no log.
func TestLinesAboutRejectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, log := newTestServer(nil, 0)
		st := server.open(notGRPC{}, nil, deltaForm.name, "")
		const total = 1000
		for range total {
			st.rejected(&session.NACK{TypeURL: clusterType, Reason: "no"})
		}
		if lines := log.take(); len(lines) != loglines.AtOnce {
			t.Errorf("%d rejections are %d lines, want %d", total, len(lines), loglines.AtOnce)
		}
		time.Sleep(loglines.Every)
		for range total {
			st.rejected(&session.NACK{TypeURL: clusterType, Reason: "no"})
		}
		want := fmt.Sprintf("skipped=%d", total-loglines.AtOnce)
		if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], want) {
			t.Errorf("a minute later the log has %d lines, the first is %q, want one with %s", len(lines), lines[0], want)
		}
		if n := server.Stats().NACKs; n != 2*total {
			t.Errorf("%d rejections are counted, want %d", n, 2*total)
		}
	})
}

// What waits to be sent is counted over all types: otherwise a client could spread it.
func TestWhatIsNotReadIsBoundedOnTheWholeStream(t *testing.T) {
	server, _ := newTestServer(nil, 0)
	st := server.open(notGRPC{}, nil, deltaForm.name, "")
	for i := range 4 {
		if e := st.checkPendingNames(); e != nil {
			t.Fatalf("with %d types of 4: %v", i, e)
		}
		st.sessions = append(st.sessions, unreadSession{n: maxPendingNames / 4})
	}
	if e := st.checkPendingNames(); e != nil {
		t.Fatal(e)
	}
	st.sessions[0] = unreadSession{n: maxPendingNames/4 + 1}
	if e := st.checkPendingNames(); e == nil || e.limit != limitPendingNames || e.got != maxPendingNames+1 {
		t.Errorf("got %v, want an excess of 1", e)
	}
}

// unreadSession has so much to send.
type unreadSession struct {
	typeSession
	n int
}

func (s unreadSession) Pending() int { return s.n }

// The number of names computed before a request equals the number after it.
func TestSubscriptionsAreCountedBeforeTheRequestIsTaken(t *testing.T) {
	names := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "*"}), 0, 8)
	rapid.Check(t, func(t *rapid.T) {
		ch := newTestCache(&recordingSource{}, 1000)
		defer ch.Close()
		server, _ := newTestServer(ch, DefaultMaxResponseBytes)
		delta, sotw := newTestClient(server, deltaForm.name, &corev3.Node{}), newTestClient(server, sotwForm.name, &corev3.Node{})
		defer delta.close()
		defer sotw.close()
		for range 4 {
			subscribe, unsubscribe := names.Draw(t, "subscribe"), names.Draw(t, "unsubscribe")
			enough := rapid.IntRange(0, 8).Draw(t, "enough")
			holds := func(what string, said, is int) {
				if is > enough && said != is || is <= enough && said > enough {
					t.Fatalf("%s: %d names were counted, it has %d (enough: %d)", what, said, is, enough)
				}
			}
			d, _ := delta.st.session(clusterType).(*session.Delta)
			if d == nil {
				d = session.NewDelta("", &session.Client{})
			}
			dr := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe}
			said := d.SubscribedWith(dr, enough)
			if err := delta.delta(dr); err != nil {
				t.Fatal(err)
			}
			holds("delta", said, delta.st.session(clusterType).Subscribed())

			sr := &discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResourceNames: subscribe}
			said = session.NewSotW("", &session.Client{}).SubscribedWith(sr, enough)
			if err := sotw.sotw(sr); err != nil {
				t.Fatal(err)
			}
			holds("SotW", said, sotw.st.session(clusterType).Subscribed())
		}
	})
}

// A client that reconnects again and again does not fill the log either, however few lines each of its streams has.
func TestLinesAboutTheClientsOfAListenerAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, log := newTestServer(nil, 0)
		g := newGate(ListenerOptions{})
		const streams = 10 * loglines.SharedAtOnce
		for what, act := range map[string]func(*stream){
			"limits":     func(st *stream) { _ = st.refuse(over(limitTypes, 2, 1, "%d types")) },
			"invalid":    func(st *stream) { _ = st.invalid(errors.New("no")) },
			"rejections": func(st *stream) { st.rejected(&session.NACK{TypeURL: clusterType}) },
			"names":      func(st *stream) { st.refuseName(over(limitAlternatives, 2, 1, "%d")) },
			"REST":       func(*stream) { _ = server.refuseRequest(g, "c", over(limitRequestBytes, 2, 1, "%d")) },
		} {
			time.Sleep(loglines.SharedAtOnce * loglines.SharedEvery)
			for range streams {
				st := server.open(notGRPC{}, nil, deltaForm.name, "")
				st.gate = g
				g.admit(st)
				act(st)
				server.forget(st)
			}
			if lines := log.take(); len(lines) != loglines.SharedAtOnce {
				t.Errorf("%s: %d streams are %d lines, want %d", what, streams, len(lines), loglines.SharedAtOnce)
			}
		}
		// Another listener's clients are not hidden by that.
		st := server.open(notGRPC{}, nil, deltaForm.name, "")
		st.gate = newGate(ListenerOptions{})
		st.gate.admit(st)
		_ = st.invalid(errors.New("no"))
		if lines := log.take(); len(lines) != 1 {
			t.Errorf("on another listener there are %d lines, want 1", len(lines))
		}
	})
}
