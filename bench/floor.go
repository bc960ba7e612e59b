package main

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/internal/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

// The floor: a bare gRPC server. It answers the first request of a client with encoded bytes,
// whatever the request is, and ignores all later requests. It broadcasts encoded bytes on
// command.

// clientHeader is the metadata with a client's number.
const clientHeader = "bench-client"

// quietOptions are the best options for many idle clients, and the relay's defaults.
// (gRPC shares write buffers by itself.)
func quietOptions() []grpc.ServerOption {
	const window, readBuffer = 1 << 20, 4 << 10
	return []grpc.ServerOption{grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window), grpc.ReadBufferSize(readBuffer)}
}

// serverOptions are the options of servers that send encoded messages.
func serverOptions() []grpc.ServerOption {
	return append(quietOptions(), grpc.ForceServerCodecV2(newRawCodec()))
}

type floor struct {
	spec *Spec

	mu      sync.Mutex           // guards the fields below
	whole   []*message           // the first answer, if all clients have the same
	ready   [][]byte             // each resource
	streams map[int]*floorStream // by client
	last    int                  // the largest number of a client

	nonce atomic.Uint64
	sent  atomic.Int64
	bytes atomic.Int64
}

// message is encoded except for its nonce.
type message struct{ body mem.BufferSlice }

type floorStream struct {
	grpc.ServerStream
	mu sync.Mutex // of sending
}

// messages splits a response as the relay does.
func (f *floor) messages(indexes []int, v int) (all []*message) {
	const most = 4<<20 - 64<<10
	var b []byte
	end := func() {
		all = append(all, &message{body: mem.BufferSlice{mem.SliceBuffer(append(b, f.spec.tail(v, f.spec.Delta)...))}})
		b = nil
	}
	if f.spec.Distinct { // no other client has the same
		m := &message{body: make(mem.BufferSlice, 0, len(indexes)+1)}
		for _, i := range indexes {
			m.body = append(m.body, mem.SliceBuffer(f.ready[i]))
		}
		m.body = append(m.body, mem.SliceBuffer(f.spec.tail(v, f.spec.Delta)))
		return []*message{m}
	}
	for _, i := range indexes {
		r := f.ready[i]
		if f.spec.Delta && len(b) > 0 && len(b)+len(r) > most {
			end()
		}
		b = append(b, r...)
	}
	end()
	return all
}

func (f *floor) send(st *floorStream, m *message) error {
	nonce := protowire.AppendTag(nil, wire.ResponseNonce, protowire.BytesType)
	nonce = protowire.AppendString(nonce, strconv.FormatUint(f.nonce.Add(1), 10))
	st.mu.Lock()
	defer st.mu.Unlock()
	f.sent.Add(1)
	f.bytes.Add(int64(m.body.Len() + len(nonce)))
	return st.SendMsg(&ready{append(m.body[:len(m.body):len(m.body)], mem.SliceBuffer(nonce))})
}

func (f *floor) handle(_ any, g grpc.ServerStream) error {
	client := 0
	if md, ok := metadata.FromIncomingContext(g.Context()); ok && len(md.Get(clientHeader)) > 0 {
		client, _ = strconv.Atoi(md.Get(clientHeader)[0]) // ours
	}
	var in raw
	if err := g.RecvMsg(&in); err != nil {
		return err
	}
	st := &floorStream{ServerStream: g}
	f.mu.Lock()
	f.streams[client] = st
	f.last = max(f.last, client)
	first := f.whole
	if first == nil {
		first = f.messages(f.spec.indexes(client), 1)
		if !f.spec.Distinct {
			f.whole = first
		}
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.streams[client] == st { // it may be a later stream
			delete(f.streams, client)
		}
	}()
	for _, m := range first {
		if err := f.send(st, m); err != nil {
			return err
		}
	}
	for {
		if err := g.RecvMsg(&in); err != nil {
			return nil
		}
	}
}

// update changes a resource and broadcasts it to the clients that have it.
func (f *floor) update(index, v int) (answer, error) {
	f.mu.Lock()
	at := time.Now()
	var to []*floorStream
	indexes := []int{index}
	if index < 0 {
		indexes = indexes[:0]
		for i := range f.ready {
			indexes = append(indexes, i)
		}
	}
	for _, i := range indexes {
		f.encode(i, v)
	}
	if f.spec.Distinct {
		// Clients repeat the same lists of names.
		for client := index / f.spec.PerClient; client <= f.last; client += f.spec.Resources / f.spec.PerClient {
			if st := f.streams[client]; st != nil {
				to = append(to, st)
			}
		}
	} else {
		to = slices.Collect(maps.Values(f.streams))
	}
	f.whole = nil
	if f.spec.Full && !f.spec.Delta {
		indexes = f.spec.indexes(0)
	}
	messages := f.messages(indexes, v)
	if len(indexes) == len(f.ready) && !f.spec.Distinct {
		f.whole = messages
	}
	f.mu.Unlock()
	f.broadcast(to, messages)
	return answer{At: at.UnixNano()}, nil
}

// everybody returns all streams.
func (f *floor) everybody() []*floorStream {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.streams))
}

func (f *floor) broadcast(to []*floorStream, messages []*message) {
	workers := max(1, min(len(to), maxWorkers))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for k := w; k < len(to); k += workers {
				for _, m := range messages {
					_ = f.send(to[k], m) // the stream has ended
				}
			}
		})
	}
	wg.Wait()
}

// maxWorkers is more than there are cores: one may wait for a client.
const maxWorkers = 16

func newFloor(spec *Spec) *floor {
	f := &floor{spec: spec, ready: make([][]byte, spec.Resources), streams: map[int]*floorStream{}}
	for i := range f.ready {
		f.encode(i, 1)
	}
	return f
}

func (f *floor) encode(i, v int) { f.ready[i] = f.spec.encodeResource(i, v, f.spec.Delta) }

func runFloor(spec *Spec) error {
	f := newFloor(spec)
	creds, err := spec.serverCredentials()
	if err != nil {
		return err
	}
	s := grpc.NewServer(append(serverOptions(), grpc.Creds(creds), grpc.UnknownServiceHandler(f.handle))...)
	return serveSource(s, f.update, f.beat, func() answer { return answer{Messages: f.sent.Load(), Bytes: f.bytes.Load()} })
}

// serveSource serves resources to clients, and changes them as commands say. count answers
// any other command.
func serveSource(s *grpc.Server, update func(index, version int) (answer, error), heartbeats func(), count func() answer) error {
	address, err := serve(s)
	if err != nil {
		return err
	}
	return serveCommands(answer{Address: address}, func(c *command) (answer, error) {
		switch c.Do {
		case "update":
			return update(c.Index, c.Version)
		case "storm":
			return storm(c, update)
		case "beat":
			return beat(c, heartbeats)
		}
		return count(), nil
	})
}

func serve(s *grpc.Server) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() { _ = s.Serve(l) }() // ends with the process
	return l.Addr().String(), nil
}

// storm makes many updates at a rate: of one resource after the other, with versions from
// c.Version on. A process that falls behind catches up as far as it can: it makes no fewer updates than another one.
func storm(c *command, update func(index, v int) (answer, error)) (answer, error) {
	began, n := time.Now(), int(c.For.Seconds()*float64(c.Rate))
	for k := range n {
		pause(time.Until(began.Add(time.Duration(k+1) * time.Second / time.Duration(c.Rate))))
		if _, err := update(k%c.Count, c.Version+k); err != nil {
			return answer{}, err
		}
	}
	return answer{Messages: int64(n)}, nil
}
