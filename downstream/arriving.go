package downstream

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/identity"
)

// The memory of requests that are being received. gRPC keeps a request until all of it has arrived: as much as
// max_request_bytes allows on each stream, for as long as the client takes. So what has arrived of incomplete requests
// is counted in the frames of each connection; over REST, when a handler reads it. While it is more than a part of the
// process's memory, connections that have much of it are not read: TCP's flow control holds the clients up. One of them
// at a time is read nevertheless, so that its request gets complete; the clients take turns. If no request gets complete,
// because the clients that have the most do not go on, their streams end; over REST their connections.

const (
	// arrivingPart is the part of the memory that incomplete requests may take.
	arrivingPart = 1. / 10
	// arrivingLeast is what the incomplete requests of a connection take, in bytes, before the connection may have to
	// wait. Few requests are larger.
	arrivingLeast = 32 << 10
	// arrivingFrame is what a frame takes in memory besides its buffer.
	arrivingFrame = 64
	// arrivingTurn is how often a connection that goes ahead is chosen at most, among those that wait then, and
	// arrivingPace how many bytes have to arrive on it in this time, or else another one goes ahead.
	arrivingTurn = 50 * time.Millisecond
	arrivingPace = 16 << 10
	// arrivingPatience is how many turns no request may get complete before the streams of the largest taker end.
	arrivingPatience = 20
)

// arrivals are the incomplete requests of a server, and the large ones that are being read. The zero value is ready.
type arrivals struct {
	bytes   atomic.Int64
	waiters atomic.Int32 // len(waiting)

	mu       sync.Mutex // the innermost lock
	takers   map[identityKey]*arrivalTaker
	room     cache.Room // of takers
	conns    map[*arriving]struct{}
	connRoom cache.Room // of conns
	// waiting are the connections that are not read, each with a channel that is closed when it is.
	waiting map[*arriving]chan struct{}
	// ahead is the connection that is read although the requests take too much, nil if there is none. It has to have
	// reaches bytes by the next turn.
	ahead   *arriving
	reaches int64
	turns   int         // how often a connection was chosen to go ahead
	stalled int         // how many turns ago a request of ahead was complete, or all connections were read
	timer   *time.Timer // set while connections wait
}

// arrivalTaker is a client, by its identity or address.
type arrivalTaker struct {
	key   identityKey
	bytes atomic.Int64
	// Guarded by arrivals.mu.
	conns int
	turn  int // arrivals.turns when a connection went ahead last, or when the client came
}

// arriving are the requests of a connection. nil counts nothing.
type arriving struct {
	server *Server
	taker  *arrivalTaker
	conn   *limitedConn
	bytes  atomic.Int64

	// warned: the connection's streams were ended. Guarded by arrivals.mu.
	warned bool

	mu      sync.Mutex // the innermost lock
	left    bool
	newest  uint32                      // stream
	streams map[uint32]*arrivingMessage // the open ones; nil for one of whose messages nothing is missing
	room    cache.Room                  // of streams
}

// arrivingMessage is a gRPC message: five bytes, the last four of which are the length of what follows.
type arrivingMessage struct {
	header [5]byte
	have   int   // how many of the five bytes
	left   int   // how many bytes follow
	bytes  int64 // what the message takes so far
}

// joinArrivals adds a connection until leave.
func (s *Server) joinArrivals(conn *limitedConn, info credentials.AuthInfo) *arriving {
	p := &peer.Peer{Addr: conn.RemoteAddr(), AuthInfo: info}
	key := identityKeyOf(peer.NewContext(context.Background(), p), identity.Proof{Peer: p}.Connection())
	a := &s.arrivals
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.takers == nil {
		a.takers, a.conns, a.waiting = map[identityKey]*arrivalTaker{}, map[*arriving]struct{}{}, map[*arriving]chan struct{}{}
	}
	taker := a.takers[key]
	if taker == nil {
		taker = &arrivalTaker{key: key, turn: a.turns}
		a.takers[key] = taker
	}
	taker.conns++
	c := &arriving{server: s, taker: taker, conn: conn}
	a.conns[c] = struct{}{}
	return c
}

// mostArriving is what the requests that arrive may take, 0 if the process's memory is not known.
func (p *pressure) mostArriving() int64 {
	if p.memory == nil {
		return 0
	}
	_, _, limit := p.memory.Needed()
	return int64(float64(limit) * arrivingPart)
}

// leave ends a joinArrivals.
func (c *arriving) leave() {
	if c == nil {
		return
	}
	c.mu.Lock()
	again, incomplete := c.left, int64(0)
	for _, m := range c.streams {
		if m != nil {
			incomplete += m.bytes
		}
	}
	c.left, c.streams = true, nil
	c.mu.Unlock()
	if again {
		return
	}
	c.add(-incomplete)
	a := &c.server.arrivals
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conns = cache.Without(a.conns, &a.connRoom, c)
	if c.taker.conns--; c.taker.conns == 0 {
		a.takers = cache.Without(a.takers, &a.room, c.taker.key)
	}
	if a.ahead == c {
		a.ahead = nil
	}
}

// add counts bytes.
func (c *arriving) add(bytes int64) {
	if c == nil || bytes == 0 {
		return
	}
	a := &c.server.arrivals
	own := c.bytes.Add(bytes)
	c.taker.bytes.Add(bytes)
	a.bytes.Add(bytes)
	if bytes > 0 || a.waiters.Load() == 0 {
		return
	}
	most := c.server.pressure.mostArriving()
	a.mu.Lock()
	defer a.mu.Unlock()
	if own <= arrivingLeast {
		a.read(c) // net/http answers a request only once the connection is being read again
	}
	a.proceed(most)
}

// open notes that the client has opened a stream.
func (c *arriving) open(stream uint32) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if stream <= c.newest || c.left {
		return
	}
	c.newest = stream
	if c.streams == nil {
		c.streams = map[uint32]*arrivingMessage{}
	}
	c.streams[stream] = nil
}

// end notes that a stream has ended. gRPC does not keep what still arrives on it.
func (c *arriving) end(stream uint32) {
	if c == nil {
		return
	}
	c.mu.Lock()
	m := c.streams[stream]
	c.streams = cache.Without(c.streams, &c.room, stream)
	c.mu.Unlock()
	if m != nil {
		c.add(-m.bytes)
	}
}

// data follows the messages of a stream in the next bytes of a DATA frame. The first bytes of a frame come with what it
// takes besides its data.
func (c *arriving) data(stream uint32, b []byte, besides int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	change := c.follow(stream, b, besides)
	c.mu.Unlock()
	c.add(change)
}

// follow is data. It returns how much more the incomplete messages take. The caller holds mu.
func (c *arriving) follow(stream uint32, b []byte, besides int) (change int64) {
	noted, open := c.streams[stream]
	if !open {
		return 0
	}
	var m arrivingMessage
	if noted != nil {
		m = *noted
	}
	m.bytes += int64(besides)
	for len(b) > 0 {
		if m.have < len(m.header) {
			n := copy(m.header[m.have:], b)
			m.have, m.bytes, b = m.have+n, m.bytes+int64(n), b[n:]
			if m.have < len(m.header) {
				break
			}
			m.left = int(binary.BigEndian.Uint32(m.header[1:]))
		}
		n := min(m.left, len(b))
		m.left, m.bytes, b = m.left-n, m.bytes+int64(n), b[n:]
		if m.left == 0 {
			m = arrivingMessage{}
		}
	}
	if noted == nil {
		if m.have == 0 {
			return 0
		}
		noted = new(arrivingMessage)
		c.streams[stream] = noted
	} else if m.have == 0 {
		c.streams[stream] = nil
	}
	change = m.bytes - noted.bytes
	*noted = m
	return change
}

// bufferOf returns the size of the buffer in which gRPC keeps a DATA frame of so many bytes.
func bufferOf(frame int) int {
	switch {
	case mem.IsBelowBufferPoolingThreshold(frame):
		return frame
	case frame <= 4<<10:
		return 4 << 10
	default:
		return 16 << 10 // longer ones are an error
	}
}

// wait waits until the connection may be read.
func (c *arriving) wait() {
	if c == nil || c.bytes.Load() <= arrivingLeast {
		return
	}
	a := &c.server.arrivals
	most := c.server.pressure.mostArriving()
	if most == 0 || a.bytes.Load() <= most {
		return
	}
	a.mu.Lock()
	if a.ahead == c {
		a.mu.Unlock()
		return
	}
	read := make(chan struct{})
	a.waiting[c] = read
	a.waiters.Add(1)
	if c.bytes.Load() <= arrivingLeast { // it has become so before there was somebody to wake
		a.read(c)
	}
	if a.timer == nil {
		a.stalled = 0
		a.timer = time.AfterFunc(arrivingTurn, c.server.takeTurn)
	}
	a.mu.Unlock()
	select {
	case <-read:
	case <-c.conn.closed:
		a.mu.Lock()
		a.read(c)
		a.mu.Unlock()
	}
}

// proceed has all connections read again if requests no longer take too much. The caller holds mu.
func (a *arrivals) proceed(most int64) {
	if a.ahead != nil && a.ahead.bytes.Load() <= arrivingLeast {
		a.ahead, a.stalled = nil, 0
	}
	if a.bytes.Load() > most {
		return
	}
	a.ahead, a.stalled = nil, 0
	for c := range a.waiting {
		a.read(c)
	}
}

// choose chooses the connection that is read although the requests take more than most. If one that does not go on gives
// way, what has arrived on it stays, so there is an end. The caller holds mu.
func (a *arrivals) choose(most int64) {
	if a.ahead != nil && a.ahead.bytes.Load() < a.reaches {
		a.ahead = nil
	}
	if a.ahead == nil && a.bytes.Load() <= most+most/2 {
		for c := range a.waiting {
			if a.ahead == nil || c.compare(a.ahead) < 0 {
				a.ahead = c
			}
		}
		a.turns++
		a.ahead.taker.turn = a.turns
		a.read(a.ahead)
	}
	if a.ahead != nil {
		a.reaches = a.ahead.bytes.Load() + arrivingPace
	}
}

// compare returns a negative number if a connection goes ahead before the other: its client went ahead longer ago, or
// else has less, or else the connection has less.
func (c *arriving) compare(other *arriving) int {
	return cmp.Or(cmp.Compare(c.taker.turn, other.taker.turn),
		cmp.Compare(c.taker.bytes.Load(), other.taker.bytes.Load()),
		cmp.Compare(c.bytes.Load(), other.bytes.Load()))
}

// read has a connection read again. The caller holds mu.
func (a *arrivals) read(c *arriving) {
	if read := a.waiting[c]; read != nil {
		close(read)
		delete(a.waiting, c)
		a.waiters.Add(-1)
	}
}

// takeTurn has a connection go ahead of the others that wait. If no request has become complete lately, it ends streams
// of the connections with the most, of the client with the most, until half of what requests may take is free. If that
// did not help before, because gRPC has not begun to serve a request or the client goes on, it closes the connection.
func (s *Server) takeTurn() {
	a := &s.arrivals
	most := s.pressure.mostArriving()
	a.mu.Lock()
	var end, closing []*arriving
	a.stalled++
	if a.proceed(most); len(a.waiting) > 0 && a.stalled >= arrivingPatience {
		a.stalled = 0
		for _, c := range a.largest(a.bytes.Load() - most/2) {
			if c.warned {
				closing = append(closing, c)
			} else {
				end = append(end, c)
			}
			c.warned = true
		}
	}
	if len(a.waiting) == 0 {
		a.timer = nil
	} else {
		a.choose(most)
		a.timer.Reset(arrivingTurn)
	}
	a.mu.Unlock()
	for _, c := range end {
		e := c.needs(most)
		s.stats.limits[e.limit].Add(1)
		if log, ok := c.conn.listener.flooded.Next(c.conn.listener.log(c.conn)); ok {
			logExcess(log, e)
		}
		if c.conn.listener.rest { // nothing else ends a request over HTTP/1
			closing = append(closing, c)
		} else {
			c.conn.calls.endAll(e)
		}
	}
	for _, c := range closing {
		_ = c.conn.Close()
	}
}

// excess returns the excess if all requests take too much, and those of the connection's client more than their share.
func (c *arriving) excess() *excess {
	if c == nil {
		return nil
	}
	a := &c.server.arrivals
	most := c.server.pressure.mostArriving()
	if most == 0 || a.bytes.Load() <= most {
		return nil
	}
	a.mu.Lock()
	takers := int64(len(a.takers))
	a.mu.Unlock()
	if c.taker.bytes.Load()*takers <= most {
		return nil
	}
	return c.needs(most)
}

// needs returns the excess of the client's requests.
func (c *arriving) needs(most int64) *excess {
	return &excess{limit: limitArriving, got: int(c.taker.bytes.Load() >> 20), most: int(most >> 20), what: "%d MiB of incomplete requests of this client", unit: " MiB for all clients"}
}

// largest returns connections of the client with the most, those with the most first, which together have so many bytes
// if there are so many. The caller holds mu.
func (a *arrivals) largest(bytes int64) (largest []*arriving) {
	var of *arrivalTaker
	for _, t := range a.takers {
		if of == nil || t.bytes.Load() > of.bytes.Load() {
			of = t
		}
	}
	for c := range a.conns {
		if c.taker == of && c.bytes.Load() > 0 {
			largest = append(largest, c)
		}
	}
	slices.SortFunc(largest, func(x, y *arriving) int { return cmp.Compare(y.bytes.Load(), x.bytes.Load()) })
	for i, c := range largest {
		if bytes -= c.bytes.Load(); bytes <= 0 {
			return largest[:i+1]
		}
	}
	return largest
}
