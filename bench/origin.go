package main

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/internal/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// The origin: a control plane that is never the bottleneck. It speaks delta and SotW,
// aggregated, and counts requests and subscriptions.

type origin struct {
	spec *Spec
	has  *supply

	mu      sync.Mutex
	version []int // by resource
	newest  int
	streams map[*originStream]struct{}
	opened  int

	requests, requestBytes, responseBytes atomic.Int64
	nonce                                 atomic.Uint64
}

type originStream struct {
	grpc.ServerStream
	delta bool
	send  sync.Mutex

	// Guarded by origin.mu.
	names map[string]bool
	all   string // the wildcard or glob, if the stream has one
}

func (o *origin) handle(delta bool) func(any, grpc.ServerStream) error {
	return func(_ any, g grpc.ServerStream) error {
		st := &originStream{ServerStream: g, delta: delta, names: map[string]bool{}}
		o.mu.Lock()
		o.streams[st] = struct{}{}
		o.opened++
		o.mu.Unlock()
		defer func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			delete(o.streams, st)
		}()
		for first := true; ; first = false {
			var in raw
			if err := g.RecvMsg(&in); err != nil {
				return nil
			}
			r, err := parseRequest(in.data, delta)
			if err != nil {
				return err
			}
			o.requests.Add(1)
			o.requestBytes.Add(int64(r.bytes))
			if out := o.answer(st, &r, first); out != nil {
				if err := o.respond(st, out); err != nil {
					return err
				}
			}
		}
	}
}

// answer returns the resources that answer a request, or nil.
func (o *origin) answer(st *originStream, r *request, first bool) []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.typeURL != o.spec.typeURL() {
		return nil
	}
	var out []int
	for _, name := range r.dropped {
		delete(st.names, name)
	}
	if !st.delta && r.nonce != "" && len(r.names) == len(st.names) {
		return nil // an ACK
	}
	wanted := map[string]bool{}
	for _, name := range r.names {
		wanted[name] = true
		if members := o.has.globs[name]; members != nil {
			st.all = name
			out = members
		} else if i, ok := o.has.index[name]; ok && !st.names[name] {
			out = append(out, i)
		}
	}
	switch {
	case !st.delta:
		st.names = wanted
	default:
		for name := range wanted {
			st.names[name] = true
		}
	}
	if first && len(r.names) == 0 {
		st.all = "*"
		return o.has.globs[st.all]
	}
	if st.all != "" && !st.delta && len(out) > 0 {
		return o.has.globs[st.all]
	}
	return out
}

// respond sends resources, in several responses if there are many.
func (o *origin) respond(st *originStream, indexes []int) error {
	const most = 3 << 20
	for len(indexes) > 0 {
		var b []byte
		n := 0
		o.mu.Lock()
		newest := o.newest
		for n < len(indexes) && (!st.delta || len(b) < most) {
			v := 1
			if i := indexes[n]; i < len(o.version) {
				v = o.version[i]
			}
			b = append(b, o.has.encode(indexes[n], v, st.delta)...)
			n++
		}
		o.mu.Unlock()
		indexes = indexes[n:]
		if err := o.sendTo(st, b, newest); err != nil {
			return err
		}
	}
	return nil
}

// sendTo sends a response with the fields in b.
func (o *origin) sendTo(st *originStream, b []byte, newest int) error {
	b = append(b, o.spec.tail(newest, st.delta)...)
	b = wire.AppendString(b, wire.ResponseNonce, strconv.FormatUint(o.nonce.Add(1), 10))
	o.responseBytes.Add(int64(len(b)))
	st.send.Lock()
	defer st.send.Unlock()
	return st.SendMsg(&ready{mem.BufferSlice{mem.SliceBuffer(b)}})
}

func (o *origin) update(index, v int) (answer, error) {
	o.mu.Lock()
	at := time.Now()
	o.newest = v
	indexes := []int{index}
	if index < 0 {
		indexes = o.has.globs["*"]
	}
	for _, i := range indexes {
		o.version[i] = v
	}
	to := map[*originStream][]int{}
	for st := range o.streams {
		switch {
		case st.all != "" && !st.delta:
			to[st] = o.has.globs[st.all]
		default:
			for _, i := range indexes {
				if st.all != "" && o.has.has(st.all, i) || st.names[o.has.name(i)] {
					to[st] = append(to[st], i)
				}
			}
		}
	}
	o.mu.Unlock()
	for st, list := range to {
		_ = o.respond(st, list) // the stream has ended
	}
	return answer{At: at.UnixNano()}, nil
}

func (o *origin) counts() *counted {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := &counted{Streams: o.opened, Requests: o.requests.Load(), RequestBytes: o.requestBytes.Load(), ResponseBytes: o.responseBytes.Load()}
	for st := range o.streams {
		c.Subscriptions += len(st.names)
		if st.all != "" && len(st.names) == 0 {
			c.Subscriptions++
		}
	}
	return c
}

func runOrigin(spec *Spec) error {
	o := &origin{spec: spec, version: make([]int, spec.Resources), newest: 1, has: newSupply(spec), streams: map[*originStream]struct{}{}}
	for i := range o.version {
		o.version[i] = 1
	}
	s := grpc.NewServer(append(serverOptions(), grpc.MaxRecvMsgSize(64<<20))...)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.discovery.v3.AggregatedDiscoveryService",
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			{StreamName: "DeltaAggregatedResources", Handler: o.handle(true), ServerStreams: true, ClientStreams: true},
			{StreamName: "StreamAggregatedResources", Handler: o.handle(false), ServerStreams: true, ClientStreams: true},
		},
	}, o)
	return serveSource(s, o.update, o.beat, func() answer { return answer{Counts: o.counts()} })
}
