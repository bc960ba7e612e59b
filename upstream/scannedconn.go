package upstream

import (
	"context"
	"encoding/binary"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
)

// gRPC says neither how many streams a server allows on a connection nor when bytes
// last came on it. Both can be seen in what the server sends.

// scannedConn is one HTTP/2 connection whose incoming frames it scans. gRPC writes and reads it after
// the handshake of TLS.
type scannedConn struct {
	net.Conn
	link   *link
	opened time.Time
	// heard is when bytes last came, as the time since opened.
	heard atomic.Int64
	// draining says that the server has sent GOAWAY: new calls go elsewhere.
	draining atomic.Bool
	frames   frameScanner // of who reads

	mu        sync.Mutex
	closed    bool
	failure   error         // why it was closed, if a probe was not answered
	suspected bool          // a request was sent, and a probe has not answered for that
	since     time.Duration // after opened, when that was
	timer     *time.Timer   // for check
}

func newScannedConn(conn net.Conn, l *link) *scannedConn {
	w := &scannedConn{Conn: conn, link: l, opened: time.Now()}
	w.frames = frameScanner{streams: l.allow, goAway: func() { w.draining.Store(true) }}
	return w
}

// Read implements net.Conn.
func (w *scannedConn) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.heard.Store(int64(time.Since(w.opened)))
		w.frames.scan(b[:n])
	}
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.failure != nil {
			err = w.failure
		}
	}
	return n, err
}

// Close implements net.Conn.
func (w *scannedConn) Close() error {
	w.mu.Lock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	return w.Conn.Close()
}

// wiredCredentials puts a scannedConn around each connection of a link. That is done here, and
// not where gRPC dials: there gRPC needs the TCP connection, to set TCP_USER_TIMEOUT.
type wiredCredentials struct {
	credentials.TransportCredentials
	link *link
}

// ClientHandshake implements credentials.TransportCredentials.
func (c wiredCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	w := newScannedConn(conn, c.link)
	c.link.wire.Store(w)
	return w, info, nil
}

// Clone implements credentials.TransportCredentials.
func (c wiredCredentials) Clone() credentials.TransportCredentials {
	return wiredCredentials{c.TransportCredentials.Clone(), c.link}
}

// frameScanner follows the frames that a server sends as far as their headers, and
// reads SETTINGS_MAX_CONCURRENT_STREAMS and GOAWAY.
type frameScanner struct {
	// streams is called with the number of streams that the server allows:
	// math.MaxUint32 if its first SETTINGS do not limit them.
	streams func(uint32)
	goAway  func()

	header   [frameHeader]byte
	headed   int // bytes of header
	rest     int // bytes of the payload to come
	settings bool
	pair     [settingPair]byte // an identifier and its value
	paired   int               // bytes of pair
	greeted  bool              // the first SETTINGS have come
	allowed  uint32
	changed  bool // allowed, by this frame
}

const (
	frameHeader = 9
	settingPair = 6
)

// scan takes the next bytes that came.
func (s *frameScanner) scan(b []byte) {
	for len(b) > 0 {
		if s.headed < frameHeader {
			n := copy(s.header[s.headed:], b)
			s.headed += n
			b = b[n:]
			if s.headed < frameHeader {
				return
			}
			s.begin()
		} else {
			n := min(s.rest, len(b))
			if s.settings {
				s.take(b[:n])
			}
			s.rest -= n
			b = b[n:]
		}
		if s.rest == 0 {
			s.end()
		}
	}
}

func (s *frameScanner) begin() {
	const lengthBytes, kindAt, flagsAt = 3, 3, 4
	var length [4]byte
	copy(length[1:], s.header[:lengthBytes])
	s.rest = int(binary.BigEndian.Uint32(length[:]))
	kind, flags := http2.FrameType(s.header[kindAt]), http2.Flags(s.header[flagsAt])
	s.settings = kind == http2.FrameSettings && !flags.Has(http2.FlagSettingsAck)
	s.paired, s.changed = 0, false
	if kind == http2.FrameGoAway {
		s.goAway()
	}
}

// take takes bytes of SETTINGS.
func (s *frameScanner) take(b []byte) {
	const idBytes = 2
	for len(b) > 0 {
		n := copy(s.pair[s.paired:], b)
		s.paired += n
		b = b[n:]
		if s.paired < settingPair {
			return
		}
		s.paired = 0
		if http2.SettingID(binary.BigEndian.Uint16(s.pair[:])) == http2.SettingMaxConcurrentStreams {
			s.allowed, s.changed = binary.BigEndian.Uint32(s.pair[idBytes:]), true
		}
	}
}

func (s *frameScanner) end() {
	s.headed = 0
	if !s.settings {
		return
	}
	if !s.greeted && !s.changed {
		s.allowed, s.changed = math.MaxUint32, true
	}
	s.greeted = true
	if s.changed {
		s.streams(s.allowed)
	}
}
