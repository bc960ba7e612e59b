package upstream

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// codec encodes requests, and passes responses on undecoded.
type codec struct{}

// Name is that of the usual codec: on the wire there is no difference.
func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	var out mem.BufferSlice
	if r, ok := v.(*nodedRequest); ok {
		out, v = mem.BufferSlice{mem.SliceBuffer(r.node)}, r.request
	}
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("upstream: cannot encode a %T (want a protobuf message)", v)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return append(out, mem.SliceBuffer(b)), nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("upstream: cannot decode into a %T (want a *frame)", v)
	}
	f.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
	return nil
}
