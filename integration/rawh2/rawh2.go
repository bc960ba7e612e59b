// Package rawh2 provides an HTTP/2 client that sends any frames that its caller chooses. It tests a server
// against clients that break the protocol.
package rawh2

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Options say how a client begins its connection.
type Options struct {
	// Settings are the settings in the client's first frame.
	Settings []http2.Setting
	// Silent makes the client send nothing by itself, neither the preface nor acknowledgements.
	Silent bool
	// Deaf makes the client read nothing, so that the server's frames fill the network's buffers.
	Deaf bool
	// TLS encrypts the connection, if it is not nil.
	TLS *tls.Config
}

// Conn is a connection. Only one goroutine at a time may call its methods that send.
type Conn struct {
	conn   net.Conn
	silent bool // Options.Silent
	framer *http2.Framer
	fields bytes.Buffer
	hpack  *hpack.Encoder
	next   uint32 // the number of the next stream

	writing sync.Mutex // the goroutine that reads sends, too: acknowledgements of settings
	reading sync.WaitGroup
	done    chan struct{} // closed when the client has stopped reading

	mu   sync.Mutex
	seen Seen
}

// Seen is what the server has sent.
type Seen struct {
	Headers, Data, Resets, Pings, Settings int // numbers of frames
	GoAway                                 *http2.ErrCode
	Ended                                  error // why reading has ended; nil while the client reads
}

// patience is how long a frame may take to be sent, so that a server that reads slowly does not block a
// test.
const patience = time.Minute

// Dial connects, and sends the preface and the settings unless o.Silent.
func Dial(address string, o Options) (*Conn, error) {
	conn, err := dial(address, o.TLS)
	if err != nil {
		return nil, err
	}
	c := &Conn{conn: conn, silent: o.Silent, framer: http2.NewFramer(conn, conn), next: 1, done: make(chan struct{})}
	c.framer.AllowIllegalWrites = true
	c.hpack = hpack.NewEncoder(&c.fields)
	if !o.Silent {
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		if err := c.framer.WriteSettings(o.Settings...); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	if o.Deaf {
		close(c.done)
	} else {
		c.reading.Go(c.read)
	}
	return c, nil
}

func dial(address string, config *tls.Config) (net.Conn, error) {
	if config == nil {
		return net.Dial("tcp", address)
	}
	return tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", address, config)
}

// Close closes the connection.
func (c *Conn) Close() {
	_ = c.conn.Close()
	c.reading.Wait()
}

// Done returns a channel that is closed when the server has closed the connection, or at once if the
// client does not read.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Seen returns what the server has sent so far.
func (c *Conn) Seen() Seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

func (c *Conn) read() {
	defer close(c.done)
	for {
		frame, err := c.framer.ReadFrame()
		c.mu.Lock()
		if err != nil {
			c.seen.Ended = err
			c.mu.Unlock()
			return
		}
		acknowledge := false
		switch f := frame.(type) {
		case *http2.HeadersFrame:
			c.seen.Headers++
		case *http2.DataFrame:
			c.seen.Data++
		case *http2.RSTStreamFrame:
			c.seen.Resets++
		case *http2.PingFrame:
			c.seen.Pings++
		case *http2.SettingsFrame:
			c.seen.Settings++
			acknowledge = !f.IsAck() && !c.silent
		case *http2.GoAwayFrame:
			code := f.ErrCode
			c.seen.GoAway = &code
		default:
		}
		c.mu.Unlock()
		if acknowledge {
			_ = c.send(c.framer.WriteSettingsAck) // the next send returns the error
		}
	}
}

// send sends frames. It never mixes the bytes of two frames.
func (c *Conn) send(write func() error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	return write()
}

// Field is one header of a request.
type Field = hpack.HeaderField

// encode returns the header block of a gRPC request.
func (c *Conn) encode(method string, extra []Field) []byte {
	c.fields.Reset()
	for _, f := range append([]Field{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method},
		{Name: ":authority", Value: "relay"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, extra...) {
		_ = c.hpack.WriteField(f) // a write to a buffer does not fail
	}
	return c.fields.Bytes()
}

// maxFrame is the largest payload of a frame, in bytes.
const maxFrame = 16 << 10

// Open opens a stream, and returns its number. It splits the headers into as many frames as necessary.
func (c *Conn) Open(method string, extra ...Field) (stream uint32, err error) {
	stream = c.next
	c.next += 2
	return stream, c.send(func() error {
		block := c.encode(method, extra)
		first := block[:min(len(block), maxFrame)]
		block = block[len(first):]
		err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndHeaders: len(block) == 0})
		for err == nil && len(block) > 0 {
			part := block[:min(len(block), maxFrame)]
			block = block[len(part):]
			err = c.framer.WriteContinuation(stream, len(block) == 0, part)
		}
		return err
	})
}

// Continue opens a stream whose headers do not end: it sends n CONTINUATION frames without the END_HEADERS
// flag.
func (c *Conn) Continue(method string, n int) error {
	stream := c.next
	c.next += 2
	return c.send(func() error {
		if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.encode(method, nil)}); err != nil {
			return err
		}
		c.fields.Reset()
		_ = c.hpack.WriteField(Field{Name: "x", Value: strings.Repeat("x", maxFrame/2), Sensitive: true})
		for range n {
			if err := c.framer.WriteContinuation(stream, false, c.fields.Bytes()); err != nil {
				return err
			}
		}
		return nil
	})
}

// Message sends a gRPC message in one frame, so the message has to be short.
func (c *Conn) Message(stream uint32, message []byte) error {
	if len(message) > maxFrame-5 {
		return fmt.Errorf("a message of %d bytes does not fit into a frame", len(message))
	}
	n := len(message)
	prefix := []byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
	return c.send(func() error { return c.framer.WriteData(stream, false, append(prefix, message...)) })
}

// Reset resets a stream.
func (c *Conn) Reset(stream uint32) error {
	return c.send(func() error { return c.framer.WriteRSTStream(stream, http2.ErrCodeCancel) })
}

// Ping sends a ping.
func (c *Conn) Ping() error {
	return c.send(func() error { return c.framer.WritePing(false, [8]byte{}) })
}

// Settings sends settings again.
func (c *Conn) Settings(s ...http2.Setting) error {
	return c.send(func() error { return c.framer.WriteSettings(s...) })
}

// WindowUpdate increases the flow-control window of a stream, or of the connection, which is stream 0.
func (c *Conn) WindowUpdate(stream, increment uint32) error {
	return c.send(func() error { return c.framer.WriteWindowUpdate(stream, increment) })
}
