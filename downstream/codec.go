package downstream

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// codec is gRPC's proto codec, except that a response is ready-made: it goes out
// as it is, in buffers that are shared between streams.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2. gRPC frees the buffers that it is given;
// ours are plain memory, for which that means nothing.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*response); ok {
		return r.encode(), nil
	}
	return c.CodecV2.Marshal(v)
}
