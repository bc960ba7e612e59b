package downstream

import (
	"compress/gzip"
	"context"
	"io"
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Large requests are processed in turns, because a request takes several times its length while it is decoded, and so
// that many of them do not take all processors. A request waits for its turn only when all of it has arrived: no client
// holds up others by sending slowly. The turns are fair among identities.

// largeRequest is the length from which a request waits for its turn, in bytes.
const largeRequest = 64 << 10

// largeRequests has a slot for each large request that is processed.
type largeRequests chan struct{}

func newLargeRequests() largeRequests {
	return make(largeRequests, max(1, min(runtime.GOMAXPROCS(0), runtime.NumCPU())/2))
}

// take waits for a slot: for that of the identity, of which each has one, and then for one of all. It returns false if
// the client has gone first. give gives the slots back.
func (l largeRequests) take(ctx context.Context, of *identityUse) bool {
	if of != nil {
		select {
		case of.large <- struct{}{}:
		case <-ctx.Done():
			return false
		}
	}
	select {
	case l <- struct{}{}:
		return true
	case <-ctx.Done():
		if of != nil {
			<-of.large
		}
		return false
	}
}

func (l largeRequests) give(of *identityUse) {
	<-l
	if of != nil {
		<-of.large
	}
}

// largeIncoming is a large request that was received, or one that is refused.
type largeIncoming struct {
	excess *excess // why the request is refused
	parts  mem.BufferSlice
	server *Server // from the request's turn on
	uses   *identityUse
	conn   *arriving
	size   int64
}

// turn makes the data of a request that was received ready, when it is the request's turn. It returns false if the
// client has gone first.
func (s *Server) turn(ctx context.Context, of *identityUse, in *incoming) bool {
	l := in.large
	if l == nil || l.excess != nil {
		return true
	}
	l.size = int64(l.parts.Len())
	if c := connOf(ctx); c != nil {
		l.conn = c.arriving.Load()
	}
	l.conn.add(l.size)
	// What a compressed request takes was not counted while it arrived.
	if e := l.conn.excess(); e != nil && isCompressed(ctx) {
		l.parts.Free()
		l.conn.add(-l.size)
		l.excess = e
		return true
	}
	ok := s.large.take(ctx, of)
	if ok {
		l.server, l.uses = s, of
		in.data = l.parts.MaterializeToBuffer(mem.DefaultBufferPool())
	} else {
		l.conn.add(-l.size)
	}
	l.parts.Free()
	l.parts = nil
	return ok
}

// excess returns why the request is refused, nil if it is not. A request that is refused is not freed.
func (in *incoming) excess() *excess {
	if in.large == nil {
		return nil
	}
	return in.large.excess
}

// free frees the request after its turn.
func (in *incoming) free() {
	in.data.Free()
	if l := in.large; l != nil {
		l.conn.add(-l.size)
		l.server.large.give(l.uses)
	}
}

// isCompressed reports whether the requests of a call are compressed.
func isCompressed(ctx context.Context) bool {
	type compressed interface{ RecvCompress() string }
	c, ok := grpc.ServerTransportStreamFromContext(ctx).(compressed)
	return ok && c.RecvCompress() != "" && c.RecvCompress() != encoding.Identity
}

// decompressor is gRPC's for gzip, but decompresses one request at a time, as that takes as much memory as the longest
// request, and a processor.
type decompressor struct {
	turn chan struct{}
	most int64 // bytes
}

// Do implements grpc.Decompressor.
func (d decompressor) Do(r io.Reader) ([]byte, error) {
	d.turn <- struct{}{}
	defer func() { <-d.turn }()
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, d.most+1))
}

// Type implements grpc.Decompressor.
func (decompressor) Type() string { return "gzip" }
