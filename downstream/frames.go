package downstream

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
)

// How many HTTP/2 frames without a request a client may send: SETTINGS, PING, WINDOW_UPDATE, and others. gRPC and
// net/http process each of them, and no limit on streams or requests counts them.

const (
	// controlFrames is how many such frames a client may send in a second, and
	// controlFrameBurst how many at once.
	controlFrames     = 500
	controlFrameBurst = 1000
	// bytesPerFrame is how many bytes sent to a client earn it one more frame, so that a response earns at least two.
	// Clients send window updates, for the stream and for the connection, and pings that measure the bandwidth, in
	// proportion to what they receive.
	bytesPerFrame = 32
	// framesPerStream is how many frames a client earns by opening a stream: one that ends its requests, one that
	// resets it, and one that opens its window.
	framesPerStream = 3
	// mostEarned bounds what a client can save up.
	mostEarned = 20_000
	// smallData is the length below which a DATA frame counts. It holds no request: even an ACK has a type URL.
	smallData = 16
	// weight is how many bytes of a frame count as one more frame, as SETTINGS frames can have many values.
	weight = 64
)

var errControlFrames = errors.New("the client sends too many control frames")

// frameMeter counts the control frames in what a client sends.
type frameMeter struct {
	preface int     // how many bytes of the preface have arrived
	http1   bool    // the connection does not begin with the preface of HTTP/2
	header  [9]byte // of the frame that is being read
	have    int     // how many bytes of the header
	skip    int     // bytes until the next frame
	streams int     // HEADERS frames that have arrived
	padded  bool    // the next byte is the length of the padding of a DATA frame
	data    int     // bytes until the end of the data in a DATA frame
	buffer  int     // what a DATA frame takes, until its data begins
	// arriving counts the requests in DATA frames. It is nil over REST, where they are counted when they are read.
	arriving *arriving

	base, earned int // frames that the client may still send
	since        time.Time
}

func newFrameMeter(now time.Time) frameMeter {
	return frameMeter{base: controlFrameBurst, since: now}
}

// walk returns the cost of the frames that begin in the next bytes from the client.
func (m *frameMeter) walk(b []byte) (cost int) {
	if rest := http2.ClientPreface[m.preface:]; rest != "" && !m.http1 {
		n := min(len(rest), len(b))
		m.http1 = string(b[:n]) != rest[:n]
		m.preface, b = m.preface+n, b[n:]
	}
	if m.http1 {
		return 0
	}
	for len(b) > 0 {
		if m.skip > 0 {
			n := min(m.skip, len(b))
			m.follow(b[:n])
			m.skip, b = m.skip-n, b[n:]
			continue
		}
		n := copy(m.header[m.have:], b)
		m.have, b = m.have+n, b[n:]
		if m.have < len(m.header) {
			break
		}
		m.have = 0
		m.skip = int(binary.BigEndian.Uint32(m.header[:]) >> 8)
		cost += m.cost(http2.FrameType(m.header[3]), m.skip)
		m.note()
	}
	return cost
}

// note notes what the frame with this header says about requests.
func (m *frameMeter) note() {
	switch http2.FrameType(m.header[3]) { //nolint:exhaustive // others say nothing about them
	case http2.FrameHeaders:
		m.arriving.open(streamOf(m.header))
	case http2.FrameRSTStream:
		m.arriving.end(streamOf(m.header))
	case http2.FrameData:
		m.data, m.buffer = m.skip, bufferOf(m.skip)+arrivingFrame
		m.padded = http2.Flags(m.header[4]).Has(http2.FlagDataPadded)
	}
}

// follow passes on the data in the next bytes of a frame.
func (m *frameMeter) follow(b []byte) {
	if m.padded {
		m.data -= 1 + int(b[0])
		m.padded, b = false, b[1:]
	}
	if n := min(m.data, len(b)); n > 0 {
		m.arriving.data(streamOf(m.header), b[:n], max(0, m.buffer-m.data))
		m.data, m.buffer = m.data-n, 0
	}
}

// begins reports that the preface is not complete, as far as the connection begins with it.
func (m *frameMeter) begins() bool { return !m.http1 && m.preface < len(http2.ClientPreface) }

func (m *frameMeter) cost(frame http2.FrameType, length int) int {
	switch frame {
	case http2.FrameHeaders: // limits.streams_per_second or requests_per_second counts them
		m.streams++
		m.earn(framesPerStream)
		return 0
	case http2.FrameData:
		if length >= smallData {
			return 0
		}
		return 1
	default:
		return 1 + length/weight
	}
}

func (m *frameMeter) earn(frames int) { m.earned = min(m.earned+frames, mostEarned) }

// pay subtracts the cost from what the client may send. It returns false if that is too much.
func (m *frameMeter) pay(cost int, now time.Time) bool {
	fromEarned := min(cost, m.earned)
	m.earned -= fromEarned
	cost -= fromEarned
	if cost == 0 {
		return true
	}
	const interval = time.Second / controlFrames
	refill := now.Sub(m.since) / interval
	m.base = int(min(int64(m.base)+int64(refill), controlFrameBurst))
	m.since = now.Add(-(now.Sub(m.since) % interval))
	m.base -= cost
	return m.base >= 0
}

// meteredConn is a connection whose control frames from the client are counted, after decryption.
type meteredConn struct {
	net.Conn
	limited *limitedConn
	// paced is set if nothing else reports the streams that the client opens to limited.
	paced bool
	sent  atomic.Int64 // bytes that have earned nothing yet
	// rest: the listener is for REST, and its server also speaks HTTP/1.
	rest bool
	// tls is the connection of a REST listener before decryption, nil for plaintext. net/http does not see it.
	tls *tls.Conn
	// goAway is nil over REST, where net/http sends GOAWAY itself.
	goAway *goAway

	meter frameMeter // used by the goroutine that reads
}

// Read implements net.Conn.
func (c *meteredConn) Read(b []byte) (int, error) {
	if c.rest {
		c.limited.arriving.Load().wait()
	} else {
		c.meter.arriving.wait()
	}
	n, err := c.Conn.Read(b)
	if e := c.count(b[:n]); e != nil {
		return 0, e
	}
	return n, err
}

// Write implements net.Conn.
func (c *meteredConn) Write(b []byte) (int, error) {
	var n int
	var err error
	if c.goAway == nil {
		n, err = c.Conn.Write(b)
	} else {
		n, err = c.goAway.write(b)
	}
	c.sent.Add(int64(n))
	return n, err
}

// count returns an error, which ends the connection, if the client sends too many frames, or does not speak HTTP/2.
func (c *meteredConn) count(b []byte) error {
	streams, preface, begins := c.meter.streams, c.meter.preface, c.meter.begins()
	cost := c.meter.walk(b)
	if begins {
		if err := c.begins(preface, b); err != nil {
			return err
		}
	}
	if c.paced {
		for range c.meter.streams - streams {
			c.limited.opened()
		}
	}
	if cost == 0 {
		return nil
	}
	sent := c.sent.Load()
	c.sent.Add(-sent / bytesPerFrame * bytesPerFrame)
	c.meter.earn(int(min(sent/bytesPerFrame, mostEarned)))
	if c.meter.pay(cost, time.Now()) {
		return nil
	}
	l := c.limited.listener
	l.server.stats.limits[limitControlFrames].Add(1)
	if log, ok := l.flooded.Next(l.log(c.limited)); ok {
		log.Warn("client sends too many control frames, and its connection is closed", "limit", limitControlFrames.String(), "max", controlFrames)
	}
	return errControlFrames
}

// onReady is called by gRPC to read, if a connection has it.
type onReady interface {
	ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error)
}

// readyMeteredConn is a meteredConn that holds no read buffer while it is quiet.
type readyMeteredConn struct {
	*meteredConn
	ready onReady
}

// ReadOnReady implements onReady.
func (c *readyMeteredConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	c.meter.arriving.wait()
	buf, n, err := c.ready.ReadOnReady(size, pool)
	if err != nil {
		return nil, 0, err
	}
	if e := c.count((*buf)[:n]); e != nil {
		pool.Put(buf)
		return nil, 0, e
	}
	return buf, n, nil
}

// Metered returns credentials for a gRPC server whose connections come from Listen. They
// bound the control frames that clients send.
func Metered(creds credentials.TransportCredentials) credentials.TransportCredentials {
	return meteredCreds{creds}
}

type meteredCreds struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (m meteredCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := m.TransportCredentials.ServerHandshake(raw)
	limited, ok := raw.(*limitedConn)
	if !ok {
		return conn, info, err
	}
	if err != nil {
		limited.handshakeFailed(err)
		return conn, info, err
	}
	if err := limited.awaitProxyHeader(); err != nil { // requests are counted by the client's address
		return conn, info, err
	}
	metered := &meteredConn{Conn: conn, limited: limited, goAway: &goAway{conn: conn.Write}, meter: newFrameMeter(time.Now())}
	metered.meter.arriving = limited.listener.server.joinArrivals(limited, info)
	metered.goAway.arriving = metered.meter.arriving
	limited.counts(metered.meter.arriving)
	limited.goAway.Store(metered.goAway)
	if limited.calls.isLeaving() { // it was sent away during the handshake
		metered.goAway.want()
	}
	if ready, ok := conn.(onReady); ok {
		return &readyMeteredConn{metered, ready}, info, nil
	}
	return metered, info, nil
}

// Clone implements credentials.TransportCredentials.
func (m meteredCreds) Clone() credentials.TransportCredentials {
	return meteredCreds{m.TransportCredentials.Clone()}
}
