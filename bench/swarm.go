package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/xds-relay/xds-relay/internal/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

// The swarm: clients that subscribe, ACK, and search responses for the marker of a version.
// They decode nothing.

type swarm struct {
	ctx context.Context

	mu     sync.Mutex
	groups map[string]*group
	creds  credentials.TransportCredentials // of all clients, nil before the first

	messages, bytes, removed atomic.Int64
	latencies                latencies
	broken                   chan struct{} // closed when failed is set
	failed                   atomic.Pointer[string]
}

// group is a group of clients of one server.
type group struct {
	cancel context.CancelFunc
	conns  []*grpc.ClientConn
	// transport is the HTTP transport of clients that poll.
	transport *http.Transport
	size      int // the clients that read
	// watch is the marker that they wait for.
	watch atomic.Pointer[watch]
}

// watch waits for a marker.
type watch struct {
	marker []byte
	count  int
	each   bool // count each resource, otherwise each client once

	mu   sync.Mutex
	seen []int64 // times, in nanoseconds since 1970
	done chan struct{}
}

// look records the markers in a message, and returns whether there are any.
func (w *watch) look(message []byte) bool {
	n := 0
	if w.each {
		n = bytes.Count(message, w.marker)
	} else if bytes.Contains(message, w.marker) {
		n = 1
	}
	if n == 0 {
		return false
	}
	now := time.Now().UnixNano()
	w.mu.Lock()
	defer w.mu.Unlock()
	for range n {
		if len(w.seen) == w.count {
			break
		}
		if w.seen = append(w.seen, now); len(w.seen) == w.count {
			close(w.done)
		}
	}
	return true
}

func (s *swarm) connect(c *command) error {
	ctx, cancel := context.WithCancel(s.ctx)
	g := &group{cancel: cancel, size: c.Clients - c.Deaf}
	s.mu.Lock()
	s.groups[c.Group] = g
	s.mu.Unlock()
	first := newWatch(1, g.size) // the first state
	if c.Each {
		first.each, first.count = true, c.Count
	}
	g.watch.Store(first)
	if c.Spec.Polls {
		s.poll(ctx, g, c)
		return nil
	}
	creds, err := s.credentials(c.Spec)
	if err != nil {
		return err
	}
	perConn := max(1, c.PerConn)
	var conn *grpc.ClientConn
	var wg sync.WaitGroup
	slots := make(chan struct{}, 64)
	if c.AtOnce {
		slots = make(chan struct{}, c.Clients)
	}
	for i := range c.Clients {
		if i%perConn == 0 {
			if conn, err = dial(c.Address, creds); err != nil {
				return err
			}
			g.conns = append(g.conns, conn)
		}
		slots <- struct{}{}
		on := conn
		wg.Go(func() {
			defer func() { <-slots }()
			if err := s.open(ctx, g, on, c.Spec, c.First+i*max(1, c.Stride), i < c.Deaf); err != nil {
				s.fail(err)
			}
		})
	}
	wg.Wait()
	return s.err()
}

func dial(address string, creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
	const window, buffer, most = 1 << 20, 4 << 10, 256 << 20
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(creds),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithReadBufferSize(buffer), grpc.WithWriteBufferSize(buffer),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newRawCodec()), grpc.MaxCallRecvMsgSize(most)))
}

// credentials returns the credentials of all clients, which share their TLS sessions.
func (s *swarm) credentials(spec *Spec) (credentials.TransportCredentials, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.creds != nil {
		return s.creds, nil
	}
	var err error
	s.creds, err = spec.clientCredentials()
	return s.creds, err
}

const (
	deltaMethod = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	sotwMethod  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
)

// open starts a client.
func (s *swarm) open(ctx context.Context, g *group, conn *grpc.ClientConn, spec *Spec, number int, deaf bool) error {
	method := sotwMethod
	if spec.Delta {
		method = deltaMethod
	}
	ctx = metadata.AppendToOutgoingContext(ctx, clientHeader, strconv.Itoa(number))
	st, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	cl := &swarmClient{swarm: s, group: g, stream: st, spec: spec, names: spec.names(number)}
	if err := cl.request("", "", true); err != nil {
		return err
	}
	if !deaf {
		go func() {
			if err := cl.read(); ctx.Err() == nil {
				s.fail(fmt.Errorf("client %d: %w", number, err))
			}
		}()
	}
	return nil
}

type swarmClient struct {
	swarm  *swarm
	group  *group
	stream grpc.ClientStream
	spec   *Spec
	names  []string
	saw    *watch // the last one that this client has seen
}

// request sends a request: the first, or an ACK.
func (c *swarmClient) request(nonce, version string, first bool) error {
	const nodeID, nodeCluster, nodeFeatures = 1, 2, 10
	num := requestFields(c.spec.Delta)
	var b []byte
	if first {
		node := wire.AppendString(nil, nodeID, "bench")
		node = wire.AppendString(node, nodeCluster, "bench")
		if c.spec.TTL > 0 && c.spec.Delta {
			node = wire.AppendString(node, nodeFeatures, "xds.config.supports-resource-ttl")
		}
		b = wire.AppendBytes(b, num.Node, node)
	}
	if version != "" && !c.spec.Delta {
		b = wire.AppendString(b, num.Version, version)
	}
	if first || !c.spec.Delta {
		for _, name := range c.names {
			b = wire.AppendString(b, num.Subscribe, name)
		}
	}
	b = wire.AppendString(b, num.TypeURL, c.spec.typeURL())
	if nonce != "" {
		b = wire.AppendString(b, num.Nonce, nonce)
	}
	return c.stream.SendMsg(&ready{mem.BufferSlice{mem.SliceBuffer(b)}})
}

// read receives responses until the stream ends, and returns the error.
func (c *swarmClient) read() error {
	var in raw
	for {
		if err := c.stream.RecvMsg(&in); err != nil {
			return err
		}
		c.swarm.messages.Add(1)
		c.swarm.bytes.Add(int64(len(in.data)))
		if c.spec.Stamped {
			c.swarm.latencies.note(in.data)
		}
		if w := c.group.watch.Load(); w != nil && (w.each || c.saw != w) && w.look(in.data) {
			c.saw = w
		}
		nonce, version, err := c.swarm.answerTo(in.data, c.spec.Delta)
		if err != nil {
			return err
		}
		if err := c.request(nonce, version, false); err != nil {
			return err
		}
		if cap(in.data) > keptBuffer {
			in.data = nil
		}
	}
}

// latencies has the latencies of all received resources, from their stamps.
type latencies struct {
	mu  sync.Mutex
	all *hdrhistogram.Histogram // in nanoseconds; nil before the first
}

// longestLatency is the upper bound of a histogram, in nanoseconds.
const longestLatency = int64(10 * time.Minute)

func (l *latencies) note(message []byte) {
	now := time.Now()
	stamps(message, func(sent time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.all == nil {
			l.all = hdrhistogram.New(1, longestLatency, 3)
		}
		_ = l.all.RecordValue(min(max(now.Sub(sent).Nanoseconds(), 0), longestLatency)) // the value is in its range
	})
}

// take returns the latencies since the last call.
func (l *latencies) take() (a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all != nil {
		a.Median, a.Slow, a.Most, a.Stamps = l.all.ValueAtQuantile(50), l.all.ValueAtQuantile(99), l.all.Max(), l.all.TotalCount()
	}
	l.all = nil
	return a
}

// keptBuffer is the largest buffer that a waiting client keeps, in bytes.
const keptBuffer = 16 << 10

// answerTo reads the fields for the ACK, and counts removed names.
func (s *swarm) answerTo(b []byte, delta bool) (nonce, version string, err error) {
	f := wire.Walk(b)
	for f.Next() {
		switch f.Num {
		case wire.ResponseNonce:
			nonce = string(f.Bytes)
		case wire.ResponseVersion:
			version = string(f.Bytes)
		case wire.DeltaRemoved:
			if delta {
				s.removed.Add(1)
			}
		}
	}
	return nonce, version, f.Err
}

func newWatch(v, count int) *watch {
	return &watch{marker: []byte(marker(v)), count: count, done: make(chan struct{})}
}

// await waits until all clients have a version, or as many as c says, and returns the times.
func (s *swarm) await(c *command) (answer, error) {
	s.mu.Lock()
	g := s.groups[c.Group]
	s.mu.Unlock()
	if g == nil {
		return answer{}, fmt.Errorf("no group %q", c.Group)
	}
	w := g.watch.Load()
	timeout := time.NewTimer(c.Timeout)
	defer timeout.Stop()
	select {
	case <-w.done:
	case <-s.broken:
		return answer{}, s.err()
	case <-timeout.C:
		w.mu.Lock()
		n := len(w.seen)
		w.mu.Unlock()
		return answer{}, errors.Join(fmt.Errorf("after %s %d of %d clients have %s", c.Timeout, n, w.count, w.marker), s.err())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.seen)
	return answer{Median: w.seen[len(w.seen)/2], Last: w.seen[len(w.seen)-1]}, s.err()
}

func (s *swarm) fail(err error) {
	text := err.Error()
	if s.failed.CompareAndSwap(nil, &text) {
		close(s.broken)
	}
}

func (s *swarm) err() error {
	if text := s.failed.Load(); text != nil {
		return errors.New(*text)
	}
	return nil
}

func runSwarm() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &swarm{ctx: ctx, groups: map[string]*group{}, broken: make(chan struct{})}
	return serveCommands(answer{}, func(c *command) (answer, error) {
		switch c.Do {
		case "connect":
			return answer{}, s.connect(c)
		case "watch":
			s.mu.Lock()
			defer s.mu.Unlock()
			g := s.groups[c.Group]
			count := c.Count
			if count == 0 {
				count = g.size
			}
			g.watch.Store(newWatch(c.Version, count))
			return answer{}, nil
		case "await":
			return s.await(c)
		case "latency":
			return s.latencies.take(), s.err()
		case "leave":
			s.mu.Lock()
			defer s.mu.Unlock()
			if g := s.groups[c.Group]; g != nil {
				g.cancel()
				for _, conn := range g.conns {
					_ = conn.Close()
				}
				if g.transport != nil {
					g.transport.CloseIdleConnections()
				}
				delete(s.groups, c.Group)
			}
			return answer{}, nil
		}
		return answer{Messages: s.messages.Load(), Bytes: s.bytes.Load(), Removed: s.removed.Load()}, s.err()
	})
}
