package downstream

import (
	"compress/gzip"
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/identity"
)

// Large requests are processed in turns, because a request takes several times its length while it is decoded, and so
// that many of them do not take all processors. A request waits for its turn only when all of it has arrived: no client
// holds up others by sending slowly. The turns are fair among identities.

// largeRequest is the length from which a request waits for its turn, in bytes.
const largeRequest = 64 << 10

// largeIncoming is a large request that was received, or one that is refused.
type largeIncoming struct {
	excess *excess // why the request is refused
	parts  mem.BufferSlice
	place  *Place // from the request's turn on
	conn   *arriving
	size   int64
}

// turn makes the data of a request that was received ready, when it is the request's turn. It returns false if the
// client has gone first.
func (s *Server) turn(ctx context.Context, id *identity.Identity, in *incoming) bool {
	l := in.large
	if l == nil || l.excess != nil {
		return true
	}
	l.size = int64(l.parts.Len())
	conn := connOf(ctx)
	if conn != nil {
		l.conn = conn.arriving.Load()
	}
	l.conn.add(l.size)
	// What a compressed request takes was not counted while it arrived.
	if e := l.conn.excess(); e != nil && isCompressed(ctx) {
		l.parts.Free()
		l.conn.add(-l.size)
		l.excess = e
		return true
	}
	place, err := s.large.take(ctx, party{identityKeyOf(ctx, id), conn}, nil)
	if err == nil {
		l.place = place
		in.data = l.parts.MaterializeToBuffer(mem.DefaultBufferPool())
	} else {
		l.conn.add(-l.size)
	}
	l.parts.Free()
	l.parts = nil
	return err == nil
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
		l.place.Give()
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
