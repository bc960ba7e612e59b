package downstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials/insecure"
)

// frames are the bytes that write writes.
func frames(write func(*http2.Framer)) []byte {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	f.AllowIllegalWrites = true
	write(f)
	return b.Bytes()
}

func pings(n int) []byte {
	return frames(func(f *http2.Framer) {
		for range n {
			_ = f.WritePing(false, [8]byte{}) // to memory
		}
	})
}

func TestWhichFramesCount(t *testing.T) {
	for _, test := range []struct {
		name string
		want int
		send func(*http2.Framer)
	}{
		{"a request", 0, func(f *http2.Framer) { _ = f.WriteData(1, false, make([]byte, smallData)) }},
		{"a stream", 0, func(f *http2.Framer) { _ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true}) }},
		{"data that is no request", 2, func(f *http2.Framer) {
			_ = f.WriteData(1, false, nil)
			_ = f.WriteData(1, false, make([]byte, smallData-1))
		}},
		{"settings", 1, func(f *http2.Framer) { _ = f.WriteSettings() }},
		{"their acknowledgement", 1, func(f *http2.Framer) { _ = f.WriteSettingsAck() }},
		{"many settings in one frame", 1 + 6*100/weight, func(f *http2.Framer) { _ = f.WriteSettings(make([]http2.Setting, 100)...) }},
		{"a ping", 1, func(f *http2.Framer) { _ = f.WritePing(false, [8]byte{}) }},
		{"a window update", 1, func(f *http2.Framer) { _ = f.WriteWindowUpdate(0, 1) }},
		{"a reset", 1, func(f *http2.Framer) { _ = f.WriteRSTStream(1, http2.ErrCodeCancel) }},
		{"a priority", 1, func(f *http2.Framer) { _ = f.WritePriority(1, http2.PriorityParam{}) }},
		{"a continuation", 1, func(f *http2.Framer) { _ = f.WriteContinuation(1, false, nil) }},
		{"a frame that nobody knows", 1, func(f *http2.Framer) { _ = f.WriteRawFrame(200, 0, 0, nil) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			sent := append([]byte(http2.ClientPreface), frames(test.send)...)
			m := newFrameMeter(time.Time{})
			if got := m.walk(sent); got != test.want {
				t.Errorf("counts as %d, want %d", got, test.want)
			}
			// However the bytes arrive.
			m = newFrameMeter(time.Time{})
			got := 0
			for len(sent) > 0 {
				n := min(1+rand.IntN(12), len(sent))
				got += m.walk(sent[:n])
				sent = sent[n:]
			}
			if got != test.want {
				t.Errorf("counts as %d if it arrives in parts, want %d", got, test.want)
			}
		})
	}
}

// HTTP/1.1 has no frames, whatever its bytes look like, and however they arrive.
func TestOnlyFramesOfHTTP2Count(t *testing.T) {
	for _, begin := range []string{"GET / HTTP/1.1\r\n", "PRI * HTTP/2.1\r\n", "P", ""} {
		sent := append([]byte(begin), pings(2*len(http2.ClientPreface))...)
		for _, chunk := range []int{1, 7, len(sent)} {
			m, cost := newFrameMeter(time.Time{}), 0
			for part := range slices.Chunk(sent, chunk) {
				cost += m.walk(part)
			}
			if cost != 0 {
				t.Errorf("after %q, in chunks of %d, %d frames count", begin, chunk, cost)
			}
		}
	}
}

// metered is a connection to a listener, from both sides.
func metered(t *testing.T, s *Server) (client net.Conn, relay net.Conn) {
	t.Helper()
	client, c := net.Pipe()
	p := pipeListener{next: make(chan net.Conn, 1)}
	p.next <- c
	accepted, err := s.Listen(p, ListenerOptions{}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	relay, _, err = Metered(insecure.NewCredentials()).Clone().ServerHandshake(accepted)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(client.Close(), relay.Close()) })
	return client, relay
}

// transfer writes to one end of a connection and reads all of it from the other.
func transfer(t *testing.T, from, to net.Conn, b []byte) error {
	t.Helper()
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = from.Write(b) // the reader says why not
	}()
	_, err := io.ReadFull(to, make([]byte, len(b)))
	if err != nil {
		_ = to.Close()
	}
	<-written
	return err
}

func TestControlFramesAreBounded(t *testing.T) {
	preface := []byte(http2.ClientPreface)
	open := frames(func(f *http2.Framer) { _ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true}) })
	for _, test := range []struct {
		name string
		do   func(t *testing.T, client, relay net.Conn)
		most int // pings that may be sent after that
	}{
		{"at once", func(*testing.T, net.Conn, net.Conn) {}, controlFrameBurst},
		{"a second later", func(t *testing.T, client, relay net.Conn) {
			if err := transfer(t, client, relay, pings(controlFrameBurst)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}, controlFrames},
		{"after a long while", func(*testing.T, net.Conn, net.Conn) { time.Sleep(time.Hour) }, controlFrameBurst},
		{"after something was sent", func(t *testing.T, client, relay net.Conn) {
			if err := transfer(t, relay, client, make([]byte, 100*bytesPerFrame+1)); err != nil {
				t.Fatal(err)
			}
			if err := transfer(t, relay, client, make([]byte, bytesPerFrame-1)); err != nil {
				t.Fatal(err)
			}
		}, controlFrameBurst + 101},
		{"after very much was sent", func(t *testing.T, client, relay net.Conn) {
			if err := transfer(t, relay, client, make([]byte, 2*mostEarned*bytesPerFrame)); err != nil {
				t.Fatal(err)
			}
		}, controlFrameBurst + mostEarned},
		{"with streams", func(t *testing.T, client, relay net.Conn) {
			if err := transfer(t, client, relay, append(open, open...)); err != nil {
				t.Fatal(err)
			}
		}, controlFrameBurst + 2*framesPerStream},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, log := newTestServer(nil, 0)
				client, relay := metered(t, server)
				if err := transfer(t, client, relay, preface); err != nil {
					t.Fatal(err)
				}
				test.do(t, client, relay)
				if err := transfer(t, client, relay, pings(test.most)); err != nil {
					t.Fatalf("%d frames are refused: %v", test.most, err)
				}
				if err := transfer(t, client, relay, pings(1)); !errors.Is(err, errControlFrames) {
					t.Errorf("one more gets %v", err)
				}
				if n := server.Stats().Limits["control_frames"]; n != 1 {
					t.Errorf("%d are counted, want 1", n)
				}
				want := fmt.Sprintf("limit=control_frames max=%d", controlFrames)
				if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], want) {
					t.Errorf("the log has %q, want %s", lines, want)
				}
			})
		})
	}
}
