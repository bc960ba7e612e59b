package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// gRPC exposes neither how many streams a server allows on a connection nor when bytes
// last came on it, nor that a large message has begun. The relay learns these from the bytes that the server sends.

// scannedConn is an HTTP/2 connection that scans its incoming frames. gRPC writes and reads it after
// the TLS handshake.
type scannedConn struct {
	net.Conn
	link   *link
	opened time.Time
	// heard is when bytes last came, as the time since opened.
	heard atomic.Int64
	// draining says that the server has sent GOAWAY: new calls go to another connection.
	draining atomic.Bool
	frames   frameScanner // used by the reader only

	mu        sync.Mutex
	closed    bool
	failure   error         // why the connection was closed, if a probe was not answered
	suspected bool          // a request was sent, and no check has been done since
	since     time.Duration // when that request was sent, as the time since opened
	timer     *time.Timer   // for check
}

func newScannedConn(conn net.Conn, l *link) *scannedConn {
	w := &scannedConn{Conn: conn, link: l, opened: time.Now()}
	w.frames = frameScanner{streams: l.allow, goAway: func() { w.draining.Store(true) }}
	w.frames.messages.large = l.of.large
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

// wiredCredentials puts a scannedConn around each connection of a link. The dialer cannot do
// that, because gRPC needs the TCP connection from it, to set TCP_USER_TIMEOUT.
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

// frameScanner parses the headers of the frames that a server sends, and
// recognizes SETTINGS_MAX_CONCURRENT_STREAMS, GOAWAY and large messages.
type frameScanner struct {
	// streams is called with the number of streams that the server allows:
	// math.MaxUint32 if its first SETTINGS do not limit them.
	streams  func(uint32)
	goAway   func()
	messages messageScanner

	header     [frameHeader]byte
	headed     int // bytes of header
	rest       int // bytes of the payload to come
	settings   bool
	data       bool
	pair       [settingPair]byte // an identifier and its value
	paired     int               // bytes of pair
	reportedUp bool              // the first SETTINGS have come
	allowed    uint32
	changed    bool // allowed, by this frame
}

const (
	frameHeader = 9
	settingPair = 6
)

// scan takes the next bytes that were read.
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
			switch {
			case s.data:
				s.messages.take(b[:n])
			case s.settings:
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
	const lengthBytes, kindAt, flagsAt, streamAt = 3, 3, 4, 5
	var length [4]byte
	copy(length[1:], s.header[:lengthBytes])
	s.rest = int(binary.BigEndian.Uint32(length[:]))
	kind, flags := http2.FrameType(s.header[kindAt]), http2.Flags(s.header[flagsAt])
	s.settings = kind == http2.FrameSettings && !flags.Has(http2.FlagSettingsAck)
	s.paired, s.changed = 0, false
	if kind == http2.FrameGoAway {
		s.goAway()
	}
	stream := binary.BigEndian.Uint32(s.header[streamAt:])
	if s.data = kind == http2.FrameData && s.messages.large != nil; s.data {
		if flags.Has(http2.FlagDataPadded) {
			s.messages.large, s.data = nil, false // no server of gRPC pads
		} else {
			s.messages.begin(stream, flags.Has(http2.FlagDataEndStream))
		}
	}
	if kind == http2.FrameRSTStream || kind == http2.FrameHeaders && flags.Has(http2.FlagHeadersEndStream) {
		s.messages.forget(stream)
	}
}

// take parses bytes of SETTINGS.
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
	if s.data {
		s.messages.end()
	}
	if !s.settings {
		return
	}
	if !s.reportedUp && !s.changed {
		s.allowed, s.changed = math.MaxUint32, true
	}
	s.reportedUp = true
	if s.changed {
		s.streams(s.allowed)
	}
}

// A half-open connection accepts requests and brings nothing: the host is dead, or
// something on the way drops the packets. gRPC's keepalive notices that after
// minutes, as servers do not allow more frequent pings. A probe notices it sooner: after a
// request and then silence, the relay makes one small call on the connection, which
// every gRPC server answers, if only with UNIMPLEMENTED. Any byte received shows that the
// connection is alive: a control plane that has nothing to send keeps its streams.
//
// A request arms the connection's timer, if it is not armed. Each silence after a request
// causes one probe.

// sent notes that a request was sent over the connection.
func (w *scannedConn) sent() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.suspected || w.closed {
		return
	}
	w.suspected, w.since = true, time.Since(w.opened)
	w.arm(w.link.of.probe.after)
}

// arm schedules check. The caller holds mu.
func (w *scannedConn) arm(in time.Duration) {
	if w.timer == nil {
		w.timer = time.AfterFunc(in, w.check)
	} else {
		w.timer.Reset(in)
	}
}

// check probes the connection, once it has been silent for long enough.
func (w *scannedConn) check() {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	silence := time.Since(w.opened) - max(w.since, time.Duration(w.heard.Load()))
	if wait := w.link.of.probe.after - silence; wait > 0 {
		w.arm(wait)
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	err := w.probe()
	w.mu.Lock()
	w.suspected = false
	if err != nil && !w.closed {
		w.failure = err
	}
	w.mu.Unlock()
	if err != nil {
		_ = w.Conn.Close() // gRPC's next Read then returns failure, and gRPC ends the streams
	}
}

// probe returns an error if the connection is half-open.
func (w *scannedConn) probe() error {
	if w.draining.Load() || !w.link.canProbe() {
		return nil
	}
	o := w.link.of.probe
	before := w.heard.Load()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	_, _ = healthv1.NewHealthClient(w.link.cc).Check(ctx, &healthv1.HealthCheckRequest{}) // any answer will do
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) || w.heard.Load() != before || w.draining.Load() {
		return nil
	}
	return fmt.Errorf("half-open connection: nothing came for %s after a request, and nothing for %s after a probe", o.after, o.timeout)
}
