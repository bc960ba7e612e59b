package upstream

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// limited is a server that allows so many streams on a connection, 0 for any number.
type limited struct {
	*testing.T
	conn   *Conn
	server *grpc.Server

	mu    sync.Mutex
	open  int // connections
	dials int
}

func runLimited(t *testing.T, limit uint32, o DialOptions, test func(*limited)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &limited{T: t}
		lis := memconn.Listen(1 << 20)
		opts := []grpc.ServerOption{grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			if err := s.SendHeader(nil); err != nil {
				return err
			}
			<-s.Context().Done()
			return nil
		})}
		if limit > 0 {
			opts = append(opts, grpc.MaxConcurrentStreams(limit))
		}
		l.server = grpc.NewServer(opts...)
		go func() { _ = l.server.Serve(lis) }()
		o.Extra = append(o.Extra, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := lis.DialContext(ctx)
			if err != nil {
				return nil, err
			}
			l.count(1)
			return &countedConn{Conn: conn, limited: l}, nil
		}))
		var err error
		if l.conn, err = Dial("passthrough:///server", o); err != nil {
			t.Fatal(err)
		}
		test(l)
		_ = l.conn.Close()
		l.server.Stop()
		synctest.Wait()
	})
}

type countedConn struct {
	net.Conn
	limited *limited
	once    sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.limited.count(-1) })
	return c.Conn.Close()
}

func (l *limited) count(by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += by
	if by > 0 {
		l.dials++
	}
}

// wantOpen checks how many connections there are.
func (l *limited) wantOpen(n int) {
	l.Helper()
	pass(time.Minute)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open != n {
		l.Errorf("%d connections are open, want %d", l.open, n)
	}
}

// streams opens streams at once, and returns what ends each.
func (l *limited) streams(n int) (ends []context.CancelFunc) {
	l.Helper()
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		ctx, cancel := context.WithCancel(l.Context())
		ends = append(ends, cancel)
		wg.Go(func() {
			var stream grpc.ClientStream
			if stream, errs[i] = l.conn.NewStream(ctx, streamDesc, "/a.Service/Stream"); errs[i] == nil {
				_, errs[i] = stream.Header() // the server has it
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			l.Errorf("a stream: %v", err)
		}
	}
	return ends
}

func end(streams []context.CancelFunc) {
	for _, end := range streams {
		end()
	}
	synctest.Wait()
}

func TestOneConnectionIsEnoughForAServerWithoutALimit(t *testing.T) {
	runLimited(t, 0, DialOptions{}, func(l *limited) {
		l.streams(300)
		l.wantOpen(1)
	})
}

// gRFC A105.
func TestFurtherConnectionsAreForStreamsThatOneDoesNotAllow(t *testing.T) {
	for _, tt := range []struct {
		limit   uint32
		streams int
		want    int // connections; one stream of each is for the probe
	}{
		{100, 99, 1}, {100, 100, 2}, {100, 250, 3}, {2, 3, 3}, {1, 3, 3},
	} {
		t.Run(fmt.Sprintf("%d streams of %d", tt.streams, tt.limit), func(t *testing.T) {
			runLimited(t, tt.limit, DialOptions{}, func(l *limited) {
				streams := l.streams(tt.streams) // before anything is known of the limit
				l.wantOpen(tt.want)
				end(streams)
				l.wantOpen(1)
				end(l.streams(tt.streams)) // when it is known
				l.wantOpen(1)
			})
		})
	}
}

func TestFurtherConnectionIsClosedWithItsLastStream(t *testing.T) {
	runLimited(t, 10, DialOptions{}, func(l *limited) {
		first := l.streams(9)
		second := l.streams(9)
		third := l.streams(1)
		l.wantOpen(3)
		end(third)
		l.wantOpen(2)
		end(first[:5])
		l.streams(5) // there is room on the first again
		l.wantOpen(2)
		end(second)
		l.wantOpen(1)
	})
}

func TestConnectionsToOneServerAreBounded(t *testing.T) {
	runLimited(t, 3, DialOptions{MaxConnections: 2}, func(l *limited) {
		streams := l.streams(4)
		_, err := l.conn.NewStream(t.Context(), streamDesc, "/a.Service/Stream")
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a stream too many gets %v, want RESOURCE_EXHAUSTED", err)
		}
		l.wantOpen(2)
		end(streams[:1])
		synctest.Wait()
		l.streams(1)
	})
}

func TestEveryConnectionIsProbed(t *testing.T) {
	runLimited(t, 3, DialOptions{}, func(l *limited) {
		l.streams(4)
		l.wantOpen(2)
		for _, link := range l.conn.links {
			if !link.canProbe() {
				t.Errorf("no room for a probe with %d streams of %d", link.streams, link.limit)
			}
		}
	})
	runLimited(t, 1, DialOptions{}, func(l *limited) {
		l.streams(1)
		l.conn.links[0].wire.Load().sent()
		time.Sleep(time.Hour) // the bubble's
		l.wantOpen(1)
		if l.dials != 1 {
			t.Errorf("%d connections were made, want 1: there is no room for a probe, whose silence says nothing", l.dials)
		}
	})
}

// A stream that nobody needs ends to make room for one that is needed.
func TestRoomIsMadeForAStreamWhenAllAreInUse(t *testing.T) {
	var ends []context.CancelFunc
	asked := 0
	o := DialOptions{MaxConnections: 3, MakeRoom: func() bool {
		asked++
		if len(ends) == 0 {
			return false
		}
		time.AfterFunc(roomEvery/2, ends[0])
		ends = ends[1:]
		return true
	}}
	runLimited(t, 1, o, func(l *limited) {
		ends = l.streams(3)
		l.streams(1) // which waits
		if asked != 1 {
			t.Errorf("room was made %d times for one stream", asked)
		}
		l.wantOpen(3)
		ends = nil
		_, err := l.conn.NewStream(l.Context(), streamDesc, "/a.Service/Stream")
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("when no room can be made, a stream gets %v, want RESOURCE_EXHAUSTED", err)
		}
	})
}

// What was given up may not have needed a stream, or another stream was quicker.
func TestMoreRoomIsMadeWhileAStreamWaits(t *testing.T) {
	var ends []context.CancelFunc
	asked := 0
	o := DialOptions{MaxConnections: 1, MakeRoom: func() bool {
		if asked++; asked == 3 {
			ends[0]()
		}
		return true
	}}
	runLimited(t, 1, o, func(l *limited) {
		ends = l.streams(1)
		begin := time.Now()
		l.streams(1)
		if took := time.Since(begin); took > 3*roomEvery {
			t.Errorf("the stream has waited for %s", took)
		}
		begin = time.Now()
		_, err := l.conn.NewStream(l.Context(), streamDesc, "/a.Service/Stream")
		if took := time.Since(begin); status.Code(err) != codes.ResourceExhausted || took != roomPatience {
			t.Errorf("what makes no room is waited for %s, with %v, want RESOURCE_EXHAUSTED after %s", took, err, roomPatience)
		}
		ctx, cancel := context.WithTimeout(l.Context(), time.Millisecond)
		defer cancel()
		if _, err := l.conn.NewStream(ctx, streamDesc, "/a.Service/Stream"); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a stream that is not wanted any more waits: %v", err)
		}
	})
}
