package downstream

import (
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// FuzzFrames has a client send any bytes: however they arrive, the same frames are counted, no more than was sent is
// counted as incomplete, and nothing is left when the client has gone. GOAWAY is only sent between frames.
func FuzzFrames(f *testing.F) {
	preface := []byte(http2.ClientPreface)
	for _, send := range []func(*http2.Framer){
		func(f *http2.Framer) { headers(f, 1); _ = f.WriteData(1, false, message(100)[:50]) },
		func(f *http2.Framer) { headers(f, 1); _ = f.WriteData(1, false, append(message(3), message(70)...)) },
		func(f *http2.Framer) {
			headers(f, 1)
			_ = f.WriteDataPadded(1, false, message(100)[:50], make([]byte, 30))
			_ = f.WriteRSTStream(1, http2.ErrCodeCancel)
		},
		func(f *http2.Framer) { _ = f.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{200, 1}) },
		func(f *http2.Framer) { _ = f.WriteSettings(http2.Setting{ID: 1, Val: 2}) },
	} {
		f.Add(append(preface[:len(preface):len(preface)], frames(send)...), uint8(7))
		f.Add(frames(send), uint8(1))
	}
	server := newFederatedServer(newTestCache(silentSource{}, 10))
	f.Fuzz(func(t *testing.T, sent []byte, chunk uint8) {
		var costs []int
		for _, size := range []int{len(sent), int(chunk) + 1} {
			conn := &limitedConn{}
			conn.addr.conn = conn
			conn.origin.Store(&origin{addr: at("10.0.0.1")})
			c := server.joinArrivals(conn, nil)
			m, cost := newFrameMeter(time.Time{}), 0
			m.arriving = c
			g := goAway{conn: func(b []byte) (int, error) { return len(b), nil }, arriving: c}
			for b := sent; len(b) > 0; {
				n := min(max(size, 1), len(b))
				cost += m.walk(b[:n])
				b = b[n:]
			}
			held := int(c.bytes.Load())
			if held < 0 || held > len(sent)*(1+arrivingFrame)+16<<10 {
				t.Errorf("%d bytes are counted of %d", held, len(sent))
			}
			costs = append(costs, cost)
			_, _ = g.write(sent) // a server may write the same
			g.want()
			g.flush()
			c.leave()
			if a := &server.arrivals; a.bytes.Load() != 0 || len(a.conns) != 0 {
				t.Errorf("%d bytes are left", a.bytes.Load())
			}
		}
		if costs[0] != costs[1] {
			t.Errorf("the frames count as %d, and in parts as %d", costs[0], costs[1])
		}
	})
}
