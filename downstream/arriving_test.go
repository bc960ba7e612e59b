package downstream

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// message is a gRPC message of so many bytes.
func message(bytes int) []byte {
	b := make([]byte, 5+bytes)
	binary.BigEndian.PutUint32(b[1:], uint32(bytes))
	return b
}

func headers(f *http2.Framer, stream uint32) {
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true})
}

// What has arrived of incomplete messages is counted, however the bytes arrive, and no longer when the message is
// complete or the stream ends.
func TestIncompleteMessagesAreCounted(t *testing.T) {
	const frame = arrivingFrame
	for _, test := range []struct {
		name string
		want int64
		send func(*http2.Framer)
	}{
		{"a complete message", 0, func(f *http2.Framer) { headers(f, 1); _ = f.WriteData(1, false, message(100)) }},
		{"a part of its header", 3 + frame, func(f *http2.Framer) { headers(f, 1); _ = f.WriteData(1, false, message(100)[:3]) }},
		{"a part of it", 55 + frame, func(f *http2.Framer) { headers(f, 1); _ = f.WriteData(1, false, message(100)[:55]) }},
		{"parts of it", 90 + 2*frame, func(f *http2.Framer) {
			headers(f, 1)
			_ = f.WriteData(1, false, message(100)[:40])
			_ = f.WriteData(1, false, message(100)[40:90])
		}},
		{"all of its parts", 0, func(f *http2.Framer) {
			headers(f, 1)
			_ = f.WriteData(1, false, message(100)[:40])
			_ = f.WriteData(1, false, message(100)[40:])
		}},
		{"one and a part of the next", 7, func(f *http2.Framer) {
			headers(f, 1)
			_ = f.WriteData(1, false, append(message(100), message(100)[:7]...))
		}},
		{"empty messages", 0, func(f *http2.Framer) { headers(f, 1); _ = f.WriteData(1, false, append(message(0), message(0)...)) }},
		{"padding", 50 + frame, func(f *http2.Framer) {
			headers(f, 1)
			_ = f.WriteDataPadded(1, false, message(100)[:50], make([]byte, 30))
		}},
		{"several streams", 30 + 40 + 2*frame, func(f *http2.Framer) {
			headers(f, 1)
			headers(f, 3)
			_ = f.WriteData(1, false, message(100)[:30])
			_ = f.WriteData(3, false, message(100)[:40])
		}},
		{"a stream that the client resets", 0, func(f *http2.Framer) {
			headers(f, 1)
			_ = f.WriteData(1, false, message(100)[:30])
			_ = f.WriteRSTStream(1, http2.ErrCodeCancel)
			_ = f.WriteData(1, false, message(100)[:30])
			headers(f, 1)
			_ = f.WriteData(1, false, message(100)[:30])
		}},
		{"a stream that was not opened", 0, func(f *http2.Framer) { _ = f.WriteData(1, false, message(100)[:30]) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := newFederatedServer(newTestCache(silentSource{}, 10))
			all := append([]byte(http2.ClientPreface), frames(test.send)...)
			for range 20 {
				conn := &limitedConn{}
				conn.addr.conn = conn
				conn.origin.Store(&origin{addr: &net.TCPAddr{}})
				c := server.joinArrivals(conn, nil)
				m := newFrameMeter(time.Time{})
				m.arriving = c
				for sent := all; len(sent) > 0; {
					n := min(1+rand.IntN(40), len(sent))
					m.walk(sent[:n])
					sent = sent[n:]
				}
				if got := c.bytes.Load(); got < test.want || got > test.want+frame {
					t.Errorf("%d bytes are counted, want %d", got, test.want)
				}
				c.leave()
				if a := &server.arrivals; a.bytes.Load() != 0 || len(a.conns) != 0 || len(a.takers) != 0 {
					t.Errorf("%d bytes of %d connections of %d clients are left", a.bytes.Load(), len(a.conns), len(a.takers))
				}
			}
		})
	}
}

// arrivingConn is a connection to a server, from an address, on which messages arrive.
type arrivingConn struct {
	client net.Conn
	relay  net.Conn
	ended  atomic.Pointer[error]
	lasts  bool          // it has more streams than those that the relay can end
	closed chan struct{} // when the relay cannot read it any more
}

func (c *arrivingConn) end(why error) {
	c.ended.Store(&why)
	if !c.lasts {
		go func() { _ = c.relay.Close() }() // as gRPC ends its only stream
	}
}

func arrivingFrom(t *testing.T, s *Server, ip string) *arrivingConn {
	t.Helper()
	client, conn := net.Pipe()
	p := pipeListener{next: make(chan net.Conn, 1)}
	p.next <- addressed{conn, &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}}
	accepted, err := s.Listen(p, ListenerOptions{}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := &arrivingConn{client: client, closed: make(chan struct{})}
	if c.relay, _, err = Metered(insecure.NewCredentials()).ServerHandshake(accepted); err != nil {
		t.Fatal(err)
	}
	if err := accepted.(*limitedConn).calls.join(&connCall{ender: c}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.closed)
		b := make([]byte, 32<<10)
		for {
			if _, err := c.relay.Read(b); err != nil {
				return
			}
		}
	}()
	go func() {
		_, _ = client.Write(append([]byte(http2.ClientPreface), frames(func(f *http2.Framer) { headers(f, 1) })...))
	}()
	synctest.Wait()
	return c
}

type addressed struct {
	net.Conn
	addr net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.addr }

// sends has the client send a part of a message, and returns a function that reports whether the relay has read it.
func (c *arrivingConn) sends(b []byte) (read func() bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.client.Write(frames(func(f *http2.Framer) {
			for len(b) > 0 {
				n := min(len(b), 16<<10)
				_ = f.WriteData(1, false, b[:n])
				b = b[n:]
			}
		}))
	}()
	return func() bool {
		synctest.Wait()
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// Requests that never end hold up only themselves: not small requests, and not for long a large one of another client.
func TestIncompleteRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, part, all = 10 << 20, 300 << 10, 2 << 20
		ch := newTestCache(silentSource{}, 10)
		defer ch.Close()
		s := newFederatedServer(ch)
		s.pressure.memory = &fakeMemory{limit: limit}
		var attackers []*arrivingConn
		read := 0
		for range 20 {
			c := arrivingFrom(t, s, "10.0.0.1")
			attackers = append(attackers, c)
			if c.sends(message(all)[:part])() {
				read++
			}
		}
		most := int64(limit * arrivingPart)
		if got := s.arrivals.bytes.Load(); got < most || got > most+int64(len(attackers)*2*arrivingLeast) {
			t.Errorf("%d bytes are kept, want at most %d", got, most)
		}
		small, large := arrivingFrom(t, s, "10.0.0.2"), arrivingFrom(t, s, "10.0.0.3")
		if !small.sends(message(1000))() || !small.sends(message(20_000))() {
			t.Error("small requests are held up")
		}
		isRead := large.sends(message(all))
		time.Sleep(2 * arrivingPatience * arrivingTurn)
		synctest.Wait()
		if large.ended.Load() != nil || small.ended.Load() != nil {
			t.Errorf("streams of others end: %v, %v", large.ended.Load(), small.ended.Load())
		}
		if !isRead() {
			t.Error("a large request of another client is held up")
		}
		ended := 0
		for _, c := range attackers {
			if why := c.ended.Load(); why != nil {
				if ended++; status.Code(*why) != codes.ResourceExhausted {
					t.Errorf("a stream ends with %v", *why)
				}
				closeArriving(c)
			}
		}
		if ended == 0 || ended == len(attackers) {
			t.Errorf("%d of %d streams of incomplete requests end, of which %d were read", ended, len(attackers), read)
		}
		closeArriving(append(attackers, small, large)...)
		time.Sleep(2 * arrivingPatience * arrivingTurn)
		a := &s.arrivals
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.bytes.Load() != 0 || a.timer != nil || a.waiters.Load() != 0 {
			t.Errorf("%d bytes are left", a.bytes.Load())
		}
	})
}

// fillArriving has a client's connections take all that incomplete requests may take.
func fillArriving(t *testing.T, ip string) (s *Server, conns []*arrivingConn) {
	t.Helper()
	ch := newTestCache(silentSource{}, 10)
	t.Cleanup(ch.Close)
	s = newFederatedServer(ch)
	s.pressure.memory = &fakeMemory{limit: 10 << 20}
	for range 10 {
		c := arrivingFrom(t, s, ip)
		conns = append(conns, c)
		c.sends(message(2 << 20)[:300<<10])()
	}
	return s, conns
}

func closeArriving(conns ...*arrivingConn) {
	for _, c := range conns {
		_ = c.client.Close()
		_ = c.relay.Close()
	}
}

// A connection that goes ahead of others and then is sent nothing does not hold them up.
func TestARequestThatDoesNotGoOnDoesNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, hoarders := fillArriving(t, "10.0.0.1")
		idle, large := arrivingFrom(t, s, "10.0.0.2"), arrivingFrom(t, s, "10.0.0.3")
		idle.sends(message(2 << 20)[:40<<10])()
		time.Sleep(2 * arrivingTurn)
		isRead := large.sends(message(2 << 20))
		time.Sleep(4 * arrivingTurn)
		if !isRead() {
			t.Error("a large request is held up by one that does not go on")
		}
		closeArriving(append(hoarders, idle, large)...)
		time.Sleep(2 * arrivingTurn)
	})
}

// If nothing serves the requests yet, as gRPC reads those of Fetch first, or the streams that end are no longer those of
// the requests, the connections are closed.
func TestConnectionsOfRequestsThatCannotEndAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, hoarders := fillArriving(t, "10.0.0.1")
		for _, c := range hoarders {
			c.lasts = true
		}
		large := arrivingFrom(t, s, "10.0.0.2")
		large.sends(message(2 << 20)[:40<<10])()
		closed := func() (n int) {
			synctest.Wait()
			for _, c := range hoarders {
				select {
				case <-c.closed:
					n++
				default:
				}
			}
			return n
		}
		time.Sleep(3 * arrivingPatience / 2 * arrivingTurn)
		if n := closed(); n != 0 {
			t.Errorf("%d connections are closed before their streams could end", n)
		}
		time.Sleep(arrivingPatience * arrivingTurn)
		if n := closed(); n == 0 || n == len(hoarders) {
			t.Errorf("%d of %d connections are closed", n, len(hoarders))
		}
		select {
		case <-large.closed:
			t.Error("the connection of another client is closed")
		default:
		}
		closeArriving(append(hoarders, large)...)
		time.Sleep(2 * arrivingTurn)
	})
}

// restArriving serves a connection over REST, on which a part of a request with a long body has arrived.
func restArriving(t *testing.T, s *Server) (client net.Conn, rest []byte, end func()) {
	t.Helper()
	const length, part = 100_000, 40_000
	o := ListenerOptions{LongPoll: time.Millisecond}
	client, c := net.Pipe()
	p := pipeListener{next: make(chan net.Conn, 1)}
	p.next <- c
	accepted, err := s.ListenREST(p, nil, o).Accept()
	if err != nil {
		t.Fatal(err)
	}
	web := s.HTTPServer(o)
	one := &oneConn{next: make(chan net.Conn, 1)}
	one.next <- accepted
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = web.Serve(one)
	}()
	body := []byte(`{"resource_names": ["` + strings.Repeat("n", length-24) + `"]}`)
	request := fmt.Appendf(nil, "POST /v3/discovery:clusters HTTP/1.1\r\nHost: relay\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", length)
	if _, err := client.Write(append(request, body[:part]...)); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return client, body[part:], func() {
		close(one.next)
		<-served
		_ = errors.Join(client.Close(), web.Close())
	}
}

// What has arrived of a request over REST is counted until it is decoded, or the client is gone.
func TestIncompleteRequestsOverRESTAreCounted(t *testing.T) {
	for _, goes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ch := newTestCache(silentSource{}, 10)
			defer ch.Close()
			s := newFederatedServer(ch)
			client, rest, end := restArriving(t, s)
			if got, want := s.arrivals.bytes.Load(), int64(firstChunk+3*laterChunk); got != want {
				t.Errorf("%d bytes are counted, want %d", got, want)
			}
			if goes {
				_ = client.Close()
			} else {
				if _, err := client.Write(rest); err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(client), nil)
				if err != nil || resp.StatusCode == http.StatusBadRequest {
					t.Errorf("the answer is %v, %v", resp, err)
				}
			}
			synctest.Wait()
			if got := s.arrivals.bytes.Load(); got != 0 {
				t.Errorf("%d bytes are left", got)
			}
			end()
			if n := len(s.arrivals.takers); n != 0 {
				t.Errorf("%d clients are left", n)
			}
		})
	}
}

// The connection of a request over REST is not read while requests take too much. If none becomes complete, it is closed.
func TestIncompleteRequestsOverRESTAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ch := newTestCache(silentSource{}, 10)
		defer ch.Close()
		s := newFederatedServer(ch)
		client, rest, end := restArriving(t, s)
		defer end()
		s.pressure.memory = &fakeMemory{limit: 200 << 10}
		_ = client.SetWriteDeadline(time.Now().Add(arrivingTurn))
		if n, err := client.Write(rest); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d more bytes are read, %v", n, err)
		}
		time.Sleep(arrivingPatience * arrivingTurn)
		synctest.Wait()
		_ = client.SetReadDeadline(time.Now().Add(arrivingTurn))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the connection stays open: %v", err)
		}
		if n := s.Stats().Limits["incomplete_requests"]; n != 1 {
			t.Errorf("%d excesses are counted, want 1", n)
		}
	})
}

// oneConn is a listener of the connections in next.
type oneConn struct {
	net.Listener
	next chan net.Conn
}

func (l *oneConn) Accept() (net.Conn, error) {
	c, ok := <-l.next
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (*oneConn) Close() error   { return nil }
func (*oneConn) Addr() net.Addr { return pipeAddr{} }
