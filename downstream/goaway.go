package downstream

import (
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
)

// goAway sends a client away from a connection that stays open, so that streams end with their status, and the client's
// next stream is on another connection. HTTP/2: "GOAWAY". gRPC itself sends GOAWAY only to all connections of a server,
// or by age, and then waits for streams that never end by themselves. So the relay writes the frame between two frames
// of gRPC.
type goAway struct {
	conn   func([]byte) (int, error) // writes to the connection
	wanted atomic.Bool

	mu     sync.Mutex // held while something is being written
	sent   bool
	begun  bool              // something was written: the first frame has to be gRPC's own
	header [frameHeader]byte // of the frame that is being written
	have   int               // how many bytes of the header
	skip   int               // bytes until the next frame
	// arriving drops what it counts of a stream when this connection ends the stream.
	arriving *arriving
}

const frameHeader = 9

// next returns where in the next bytes the first frame begins, or -1.
func (g *goAway) next(b []byte) int {
	if g.have == 0 && g.skip == 0 {
		return 0
	}
	at, skip := 0, g.skip
	if g.have > 0 {
		header := g.header
		at = copy(header[g.have:], b)
		if g.have+at < frameHeader {
			return -1
		}
		skip = lengthOf(header)
	}
	if at += skip; at > len(b) {
		return -1
	}
	return at
}

// wrote records what has been written.
func (g *goAway) wrote(b []byte) {
	g.begun = g.begun || len(b) > 0
	for len(b) > 0 {
		if g.skip > 0 {
			n := min(g.skip, len(b))
			g.skip, b = g.skip-n, b[n:]
			continue
		}
		n := copy(g.header[g.have:], b)
		g.have, b = g.have+n, b[n:]
		if g.have == frameHeader {
			g.have, g.skip = 0, lengthOf(g.header)
			if t := http2.FrameType(g.header[3]); t == http2.FrameRSTStream || t == http2.FrameHeaders && http2.Flags(g.header[4]).Has(http2.FlagHeadersEndStream) {
				g.arriving.end(streamOf(g.header))
			}
		}
	}
}

func lengthOf(header [frameHeader]byte) int { return int(binary.BigEndian.Uint32(header[:]) >> 8) }

// streamOf returns the stream of a frame.
func streamOf(header [frameHeader]byte) uint32 {
	return binary.BigEndian.Uint32(header[5:]) & math.MaxInt32
}

// want has the next write include the frame, if it fits.
func (g *goAway) want() { g.wanted.Store(true) }

// flush writes the frame if it is wanted, no write has included it, and it fits now. It waits for the write in
// progress.
func (g *goAway) flush() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wanted.Load() && !g.sent && g.begun && g.have == 0 && g.skip == 0 {
		g.sent = true
		_, _ = g.conn(goAwayFrame) // the client may have gone
	}
}

// write writes b, with the frame in it if it is wanted and fits.
func (g *goAway) write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := -1
	if g.wanted.Load() && !g.sent && g.begun {
		at = g.next(b)
	}
	if at < 0 {
		n, err := g.conn(b)
		g.wrote(b[:n])
		return n, err
	}
	g.sent = true
	all := make([]byte, 0, len(b)+len(goAwayFrame))
	all = append(append(append(all, b[:at]...), goAwayFrame...), b[at:]...)
	n, err := g.conn(all)
	if n > at {
		n = max(at, n-len(goAwayFrame))
	}
	g.wrote(b[:n])
	return n, err
}

// goAwayFrame ends no streams: the last stream that it accepts is the highest possible.
var goAwayFrame = func() []byte {
	const text = "connect again"
	frame := binary.BigEndian.AppendUint32(nil, (8+uint32(len(text)))<<8|uint32(http2.FrameGoAway))
	frame = append(frame, 0)                                              // flags
	frame = binary.BigEndian.AppendUint32(frame, 0)                       // of the connection
	frame = binary.BigEndian.AppendUint32(frame, math.MaxInt32)           // the last stream
	frame = binary.BigEndian.AppendUint32(frame, uint32(http2.ErrCodeNo)) // no error
	return append(frame, text...)
}()
