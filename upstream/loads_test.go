package upstream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
)

// loadPlane is a control plane that takes load reports as handle says.
type loadPlane struct {
	lrsv3.UnimplementedLoadReportingServiceServer
	target  LoadTarget
	streams atomic.Int32
	handle  func(n int32, stream lrsv3.LoadReportingService_StreamLoadStatsServer) error
}

func startLoadPlane(t *testing.T, handle func(n int32, stream lrsv3.LoadReportingService_StreamLoadStatsServer) error) *loadPlane {
	t.Helper()
	p := &loadPlane{handle: handle}
	listener := memconn.Listen(1 << 16)
	server := grpc.NewServer()
	lrsv3.RegisterLoadReportingServiceServer(server, p)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///plane", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p.target = LoadTarget{
		Conn: conn, Presence: NewPresence("plane", slog.New(slog.DiscardHandler)), Node: &corev3.Node{Id: "edge"}, Address: "plane",
		BackoffBase: time.Millisecond, BackoffMax: 5 * time.Millisecond, Reports: new(atomic.Uint64),
		Current: func() bool { return true }, Leave: func() {},
	}
	return p
}

// StreamLoadStats implements the service.
func (p *loadPlane) StreamLoadStats(stream lrsv3.LoadReportingService_StreamLoadStatsServer) error {
	return p.handle(p.streams.Add(1), stream)
}

// eachReport calls take with each report and the requests in it, until that returns an error or the relay ends the stream.
func eachReport(stream lrsv3.LoadReportingService_StreamLoadStatsServer, take func(r *lrsv3.LoadStatsRequest, dropped uint64) error) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the relay ends the stream
		}
		dropped := uint64(0)
		for _, st := range r.GetClusterStats() {
			dropped += st.GetTotalDroppedRequests()
		}
		if err := take(r, dropped); err != nil {
			return err
		}
	}
}

// Target implements LoadRoute.
func (p *loadPlane) Target(int) (LoadTarget, bool) { return p.target, true }

// Close implements LoadRoute.
func (*loadPlane) Close() {}

// someLoads are loads of a number of requests.
type someLoads struct {
	every time.Duration
	over  atomic.Bool
	alone atomic.Bool

	mu             sync.Mutex
	requests       uint64
	changed        chan struct{} // has something after any of the calls
	asked, refused int
	failed         int
}

func newSomeLoads(requests uint64) *someLoads {
	return &someLoads{every: time.Millisecond, requests: requests, changed: make(chan struct{}, 1)}
}

func (l *someLoads) note(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *someLoads) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		l.mu.Lock()
		done := ok()
		l.mu.Unlock()
		if done {
			return
		}
		select {
		case <-l.changed:
		case <-late:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func (l *someLoads) Asked(*lrsv3.LoadStatsResponse) (every time.Duration) {
	l.note(func() {
		l.asked++
		every = l.every
	})
	return every
}
func (l *someLoads) Failed()    { l.note(func() { l.failed++ }) }
func (l *someLoads) Refused()   { l.note(func() { l.refused++ }) }
func (l *someLoads) Over() bool { return l.over.Load() }

func (l *someLoads) Alone() bool { return l.alone.Load() }

func (l *someLoads) Take(int) (messages [][]*endpointv3.ClusterStats, at time.Time, ok bool) {
	l.note(func() {
		if l.requests > 0 {
			messages = [][]*endpointv3.ClusterStats{{{ClusterName: "c", TotalDroppedRequests: l.requests}}}
		}
		l.requests = 0
	})
	return messages, time.Now(), true
}

func (l *someLoads) Restore(messages [][]*endpointv3.ClusterStats, _ time.Time) {
	l.note(func() {
		for _, m := range messages {
			for _, st := range m {
				l.requests += st.GetTotalDroppedRequests()
			}
		}
	})
}

func startLoads(t *testing.T, l *someLoads, p *loadPlane) *LoadStream {
	t.Helper()
	s := NewLoadStream(l, p, &loglines.Shared{}, slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	return s
}

// A control plane without the service gets one stream, and no further one for some time, from any scope.
func TestAControlPlaneThatTakesNoLoadReportsIsLeftAlone(t *testing.T) {
	p := startLoadPlane(t, func(int32, lrsv3.LoadReportingService_StreamLoadStatsServer) error {
		return status.Error(codes.Unimplemented, "no such service")
	})
	first, second := newSomeLoads(1), newSomeLoads(1)
	s := startLoads(t, first, p)
	first.await(t, "the first scope is refused", func() bool { return first.refused > 0 })
	startLoads(t, second, p)
	second.await(t, "the second scope is refused", func() bool { return second.refused > 0 })
	for range 10 {
		s.Wake()
	}
	if n := p.streams.Load(); n != 1 {
		t.Errorf("%d streams were opened, want 1", n)
	}
}

// A control plane that has taken reports and answers UNIMPLEMENTED for a moment is tried again: no load is
// lost.
func TestAControlPlaneThatHasTakenLoadReportsIsTriedAgain(t *testing.T) {
	p := startLoadPlane(t, func(n int32, stream lrsv3.LoadReportingService_StreamLoadStatsServer) error {
		if n == 1 {
			_ = stream.Send(&lrsv3.LoadStatsResponse{})
			return status.Error(codes.Unavailable, "restarting")
		}
		return status.Error(codes.Unimplemented, "no such service")
	})
	l := newSomeLoads(1)
	startLoads(t, l, p)
	l.await(t, "it counts as one that takes none", func() bool { return l.refused > 0 })
	if n := p.streams.Load(); n != 1+mostDoubts {
		t.Errorf("%d streams were opened, want %d", n, 1+mostDoubts)
	}
}

// The control plane gets each load exactly once, although it ends each stream after one report.
func TestLoadsAreSentOnTheNextStream(t *testing.T) {
	var sum atomic.Uint64
	const requests, each = 20, 3
	l := newSomeLoads(0)
	p := startLoadPlane(t, func(_ int32, stream lrsv3.LoadReportingService_StreamLoadStatsServer) error {
		r, err := stream.Recv()
		if err != nil || r.GetNode().GetId() != "edge" || len(r.GetClusterStats()) > 0 {
			t.Errorf("the first request is %v (%v), want the Node", r, err)
		}
		// Before the stream is answered, so that there is something to report when the interval begins.
		l.note(func() {
			if sum.Load() < requests*each {
				l.requests += each
			}
		})
		if err := stream.Send(&lrsv3.LoadStatsResponse{}); err != nil {
			return err
		}
		return eachReport(stream, func(r *lrsv3.LoadStatsRequest, dropped uint64) error {
			if r.GetNode() != nil {
				t.Error("the Node comes again")
			}
			if sum.Add(dropped) < requests*each && dropped > 0 {
				return errors.New("that was enough for this stream")
			}
			l.note(func() {})
			return nil
		})
	})
	startLoads(t, l, p)
	l.await(t, "everything was sent", func() bool { return sum.Load() >= requests*each && l.requests == 0 })
	if got := sum.Load(); got != requests*each {
		t.Errorf("the control plane was sent %d, want %d", got, requests*each)
	}
}

// A stream that is closed sends the load so far, although the interval is not over.
func TestTheLastLoadIsSentAtTheEnd(t *testing.T) {
	var sum atomic.Uint64
	p := startLoadPlane(t, func(_ int32, stream lrsv3.LoadReportingService_StreamLoadStatsServer) error {
		if err := stream.Send(&lrsv3.LoadStatsResponse{}); err != nil {
			return err
		}
		return eachReport(stream, func(_ *lrsv3.LoadStatsRequest, dropped uint64) error {
			sum.Add(dropped)
			return nil
		})
	})
	l := newSomeLoads(7)
	l.every = time.Hour
	s := startLoads(t, l, p)
	l.await(t, "the control plane has answered", func() bool { return l.asked > 0 })
	s.Close()
	if got := sum.Load(); got != 7 {
		t.Errorf("the control plane was sent %d, want 7", got)
	}
}

// When reports go to another server, the stream moves there with the load so far.
func TestLoadsMoveToAnotherServer(t *testing.T) {
	var moved atomic.Bool
	var old, next atomic.Uint64
	l := newSomeLoads(0)
	p := startLoadPlane(t, func(n int32, stream lrsv3.LoadReportingService_StreamLoadStatsServer) error {
		if err := stream.Send(&lrsv3.LoadStatsResponse{}); err != nil {
			return err
		}
		to := &next
		if n == 1 {
			to = &old
		}
		return eachReport(stream, func(_ *lrsv3.LoadStatsRequest, dropped uint64) error {
			to.Add(dropped)
			l.note(func() {})
			return nil
		})
	})
	p.target.Current = func() bool { return !moved.Load() || p.streams.Load() > 1 }
	l.every = time.Hour
	s := startLoads(t, l, p)
	l.await(t, "the first server has answered", func() bool { return l.asked == 1 })
	l.note(func() { l.requests, l.every = 9, time.Millisecond })
	moved.Store(true)
	s.Wake()
	l.await(t, "the second server was sent the load", func() bool { return next.Load() == 9 })
	if n := old.Load(); n != 0 {
		t.Errorf("the first server was sent %d", n)
	}
}

// The stream ends by itself when nobody needs it.
func TestALoadStreamEndsWhenItIsOver(t *testing.T) {
	ended := make(chan struct{})
	p := startLoadPlane(t, func(_ int32, stream lrsv3.LoadReportingService_StreamLoadStatsServer) error {
		defer close(ended)
		if err := stream.Send(&lrsv3.LoadStatsResponse{}); err != nil {
			return err
		}
		return eachReport(stream, func(*lrsv3.LoadStatsRequest, uint64) error { return nil })
	})
	l := newSomeLoads(0)
	l.every = time.Hour
	s := startLoads(t, l, p)
	l.await(t, "the control plane has answered", func() bool { return l.asked == 1 })
	l.over.Store(true)
	s.Wake()
	<-ended
	<-s.ended
}

// When no client reports any more, what they have reported does not wait for the control plane's interval.
func TestTheLoadOfTheLastClientIsSentAtOnce(t *testing.T) {
	var sum atomic.Uint64
	p := startLoadPlane(t, func(_ int32, stream lrsv3.LoadReportingService_StreamLoadStatsServer) error {
		if err := stream.Send(&lrsv3.LoadStatsResponse{}); err != nil {
			return err
		}
		return eachReport(stream, func(_ *lrsv3.LoadStatsRequest, dropped uint64) error { sum.Add(dropped); return nil })
	})
	l := newSomeLoads(7)
	l.every = time.Hour
	s := startLoads(t, l, p)
	l.await(t, "the control plane has answered", func() bool { return l.asked == 1 })
	l.alone.Store(true)
	s.Wake()
	for end := time.Now().Add(time.Minute); sum.Load() != 7; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the control plane was sent %d of 7", sum.Load())
		}
	}
}

// endingPlane is a control plane that answers once more and ends the stream while a report is being sent.
type endingPlane struct {
	grpc.ClientConnInterface
	grpc.ClientStream
	received            atomic.Int32
	reporting, answered chan struct{}
	opened              atomic.Int32
}

// NewStream implements grpc.ClientConnInterface.
func (p *endingPlane) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	if p.opened.Add(1) > 1 {
		return nil, status.Error(codes.Unavailable, "gone")
	}
	return p, nil
}

// SendMsg implements grpc.ClientStream: the stream ends while it takes a report.
func (p *endingPlane) SendMsg(m any) error {
	if m.(*lrsv3.LoadStatsRequest).GetNode() != nil {
		return nil
	}
	close(p.reporting)
	<-p.answered
	return io.EOF
}

// RecvMsg implements grpc.ClientStream.
func (p *endingPlane) RecvMsg(any) error {
	switch p.received.Add(1) {
	case 1:
		return nil
	case 2:
		<-p.reporting
		close(p.answered)
		return nil
	}
	return status.Error(codes.Unavailable, "that was all")
}

// A control plane may answer again and end the stream while a report is being sent: the next stream reports.
func TestALoadStreamThatEndsDuringAReportIsFollowedByAnother(t *testing.T) {
	p := startLoadPlane(t, nil)
	ending := &endingPlane{reporting: make(chan struct{}), answered: make(chan struct{})}
	p.target.Conn = ending
	l := newSomeLoads(3)
	startLoads(t, l, p)
	l.await(t, "another stream is tried", func() bool { return l.failed > 1 })
	if l.requests != 3 {
		t.Errorf("%d requests are left to be reported, want 3", l.requests)
	}
}
