package upstream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Conn is shared by all streams to one server. It has a gRPC connection, and opens further ones
// while there are more streams than the server allows on one
// (SETTINGS_MAX_CONCURRENT_STREAMS). gRFC A105: gRPC for Go does not do that by itself:
// its streams wait until others end. On each connection one stream is reserved for the
// probe, if the server allows more than one.
type Conn struct {
	address string
	dial    []grpc.DialOption
	creds   credentials.TransportCredentials
	most    int // of links
	// makeRoom is DialOptions.MakeRoom, or nil.
	makeRoom func() bool
	// large announces a large response that MaxResponseBytes allows, or is nil.
	large func(bytes int)
	probe struct{ after, timeout time.Duration }

	mu     sync.Mutex
	links  []*link // at least one; a stream goes over the first that has room for it
	closed bool
	// freed, if not nil, is closed when there may be room for a stream again: some streams wait for it.
	freed chan struct{}
}

// link is one of a Conn's connections. gRPC reconnects it when it is lost.
type link struct {
	of   *Conn
	cc   *grpc.ClientConn
	wire atomic.Pointer[scannedConn] // the newest; nil before the first

	// of.mu guards these:
	streams int    // that are open or being opened
	limit   uint32 // of streams, by the server's newest SETTINGS
	opening map[*opening]struct{}
}

// opening is a stream that is being opened: it waits for the connection.
type opening struct {
	link   *link
	cancel context.CancelFunc
	moved  bool // it must go over another link; link.of.mu guards it
	ended  sync.Once
}

// newConn makes a Conn, which connects when the first stream is opened.
func newConn(c *Conn) (*Conn, error) {
	if _, err := c.add(); err != nil {
		return nil, err
	}
	return c, nil
}

// add adds a link. The caller holds mu, unless c is not shared yet.
func (c *Conn) add() (*link, error) {
	l := &link{of: c, limit: math.MaxUint32, opening: map[*opening]struct{}{}}
	creds := grpc.WithTransportCredentials(wiredCredentials{c.creds, l})
	cc, err := grpc.NewClient(c.address, append([]grpc.DialOption{creds}, c.dial...)...)
	if err != nil {
		return nil, fmt.Errorf("server %q: %w", c.address, err)
	}
	l.cc = cc
	c.links = append(c.links, l)
	return l, nil
}

// Close closes the connections.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closed = true
	links := c.links
	c.mu.Unlock()
	var err error
	for _, l := range links {
		if e := l.cc.Close(); err == nil {
			err = e
		}
	}
	return err
}

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	c.mu.Lock()
	l := c.links[0]
	c.mu.Unlock()
	return l.cc.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	for {
		o, ctx, err := c.beginOrWait(ctx)
		if err != nil {
			return nil, err
		}
		stream, err := o.link.cc.NewStream(ctx, desc, method, append(slices.Clone(opts), grpc.OnFinish(func(error) { o.end() }))...)
		if o.opened() {
			if err != nil {
				return nil, err
			}
			return &linkStream{stream, o.link}, nil
		}
		o.end() // also ends the stream, if there is one
	}
}

// linkStream notes that requests were sent, for the probe.
type linkStream struct {
	grpc.ClientStream
	link *link
}

// SendMsg implements grpc.ClientStream.
func (s *linkStream) SendMsg(m any) error {
	err := s.ClientStream.SendMsg(m)
	if w := s.link.wire.Load(); w != nil && err == nil {
		w.sent()
	}
	return err
}

// errFull says that no link has room for a stream, and that there can be no further links.
var errFull = errors.New("no connection has room for a stream")

const (
	// roomPatience is how long a stream waits for room that was made for it: longer than
	// a control plane may take to end a stream that is no longer needed.
	roomPatience = 2 * parting
	// roomEvery is how often a waiting stream has more room made: another stream
	// may have taken the room, or what was given up had no stream.
	roomEvery = 500 * time.Millisecond
)

// beginOrWait is begin for a stream that waits for room, if MakeRoom can make some.
func (c *Conn) beginOrWait(ctx context.Context) (*opening, context.Context, error) {
	o, within, freed, err := c.begin(ctx)
	if err == nil || !errors.Is(err, errFull) {
		return o, within, err
	}
	full := status.Errorf(codes.ResourceExhausted,
		"all streams that the server allows on %d connections are in use, and the relay opens no further connections", c.most)
	if c.makeRoom == nil || !c.makeRoom() {
		return nil, nil, full
	}
	patience := time.NewTimer(roomPatience)
	defer patience.Stop()
	again := time.NewTicker(roomEvery)
	defer again.Stop()
	for {
		select {
		case <-freed:
		case <-again.C:
			c.makeRoom()
		case <-patience.C:
			return nil, nil, full
		case <-ctx.Done():
			return nil, nil, status.FromContextError(ctx.Err()).Err()
		}
		if o, within, freed, err = c.begin(ctx); err == nil || !errors.Is(err, errFull) {
			return o, within, err
		}
	}
}

// begin finds a link for a new stream. The stream must use the returned context. If
// there is no link, freed is closed when there may be one.
func (c *Conn) begin(ctx context.Context) (o *opening, within context.Context, freed <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, nil, status.Error(codes.Canceled, "the connection is closed")
	}
	at := slices.IndexFunc(c.links, (*link).hasRoom)
	var l *link
	switch {
	case at >= 0:
		l = c.links[at]
	case len(c.links) >= c.most:
		if c.freed == nil {
			c.freed = make(chan struct{})
		}
		return nil, nil, c.freed, errFull
	default:
		if l, err = c.add(); err != nil {
			return nil, nil, nil, status.Error(codes.Unavailable, err.Error())
		}
	}
	within, cancel := context.WithCancel(ctx)
	o = &opening{link: l, cancel: cancel}
	l.streams++
	l.opening[o] = struct{}{}
	return o, within, nil, nil
}

// opened notes that the stream waits no more. It returns false if the stream must go over
// another link.
func (o *opening) opened() bool {
	c := o.link.of
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(o.link.opening, o)
	return !o.moved
}

// end notes that the stream has ended. It closes the link if that has no more streams and
// is not the only one.
func (o *opening) end() {
	o.ended.Do(func() {
		o.cancel()
		l, c := o.link, o.link.of
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(l.opening, o)
		l.streams--
		if at := slices.Index(c.links, l); at >= 0 && l.streams == 0 && len(c.links) > 1 && !c.closed {
			c.links = slices.Delete(c.links, at, at+1)
			go func() { _ = l.cc.Close() }() // the only error is that it was closed before
		}
		if c.freed != nil {
			close(c.freed)
			c.freed = nil
		}
	})
}

// room returns how many streams may use the link. The caller holds of.mu.
func (l *link) room() int {
	switch {
	case l.limit == 0 || l.limit > math.MaxInt32:
		return math.MaxInt // also for 0, because other links would not allow more
	case l.limit == 1:
		return 1
	}
	return int(l.limit) - 1
}

// hasRoom reports whether a stream can be added. The caller holds of.mu.
func (l *link) hasRoom() bool { return l.streams < l.room() }

// canProbe reports whether the link has streams, and room for one more. A probe that has to wait
// for the end of a stream would say nothing about the connection.
func (l *link) canProbe() bool {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	return l.streams > 0 && uint32(min(l.streams, math.MaxInt32)) < l.limit
}

// allow sets how many streams the server allows. It is called before gRPC
// learns the limit, so that excess streams which still wait for the connection go over
// other links.
func (l *link) allow(streams uint32) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.limit = streams
	excess := l.streams - l.room()
	for o := range l.opening {
		if excess <= 0 {
			return
		}
		if !o.moved {
			o.moved = true
			o.cancel()
		}
		excess--
	}
}

// Dial makes the connection to a server, host:port or any other target of gRPC,
// for long-lived streams with little traffic. It does not wait: gRPC connects when
// the first stream is opened, and again when the connection is lost.
func Dial(address string, o DialOptions) (*Conn, error) {
	maxResponse := or(o.MaxResponseBytes, defaultMaxResponseBytes)
	connect := grpcbackoff.DefaultConfig
	connect.MaxDelay = maxConnectDelay
	opts := []grpc.DialOption{
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:    or(o.KeepaliveTime, defaultKeepaliveTime),
			Timeout: or(o.KeepaliveTimeout, defaultKeepaliveTimeout),
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
		grpc.WithInitialWindowSize(or(o.StreamWindow, defaultStreamWindow)),
		grpc.WithInitialConnWindowSize(or(o.ConnWindow, defaultConnWindow)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: connect, MinConnectTimeout: minConnectTimeout}),
		// The relay's configuration decides where and how it connects, not DNS.
		grpc.WithDisableServiceConfig(),
	}
	if o.UserAgent != "" {
		opts = append(opts, grpc.WithUserAgent(o.UserAgent))
	}
	c := &Conn{address: address, dial: append(opts, o.Extra...), creds: o.TLS, most: or(o.MaxConnections, defaultMaxConnections), makeRoom: o.MakeRoom}
	if c.creds == nil {
		c.creds = insecure.NewCredentials()
	}
	if o.LargeResponse != nil {
		c.large = func(bytes int) {
			if bytes <= maxResponse {
				o.LargeResponse(bytes)
			}
		}
	}
	c.probe.after, c.probe.timeout = or(o.ProbeAfter, defaultProbeAfter), or(o.ProbeTimeout, defaultProbeTimeout)
	return newConn(c)
}
