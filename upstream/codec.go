package upstream

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// frame receives a message as it came over the wire, or what a poll has brought.
type frame struct {
	buf  mem.Buffer
	poll *polled // nil unless it is that
}

// parse returns the response, nil if a poll has brought nothing new.
func (f *frame) parse(form *form) (*response, error) {
	if f.poll != nil {
		return f.poll.response, nil
	}
	b := f.buf.ReadOnlyData()
	r, err := form.parse(b)
	if err != nil {
		return nil, fmt.Errorf("response of %d bytes cannot be decoded: %w", len(b), err)
	}
	return r, nil
}

// free gives the bytes back: nothing may refer to them any more.
func (f *frame) free() {
	if f.buf != nil {
		f.buf.Free()
		f.buf = nil
	}
}

// codec encodes requests, and hands over responses undecoded.
type codec struct{}

// Name is that of the usual codec: on the wire there is no difference.
func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("upstream: cannot encode a %T (want a protobuf message)", v)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("upstream: cannot decode into a %T (want a *frame)", v)
	}
	f.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
	return nil
}
