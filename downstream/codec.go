package downstream

import (
	"fmt"
	"math"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// codec is gRPC's proto codec, except that a response is ready-made: it goes out
// as it is, in buffers that are shared between streams; and that a request which
// is too long is not decoded but said to be.
type codec struct {
	encoding.CodecV2
	maxRequest int // bytes; 0 for no limit
}

func newCodec(maxRequest int) codec {
	return codec{CodecV2: encoding.GetCodecV2(proto.Name), maxRequest: maxRequest}
}

// incoming is what a request is read into: it is left encoded in data, to be freed. Of
// one that is over max_request_bytes that stays empty.
type incoming struct {
	data   mem.Buffer
	excess *excess
}

// readFactor is how much more than its listener's limit a request may have, if that is
// more than leastRead, for gRPC to read it at all, so that the relay can say which
// limit it is over. Of a longer one gRPC ends the stream before the relay sees it.
const readFactor = 4

// leastRead is what gRPC reads however small the limit is: what it does with the
// default limit.
const leastRead = 16 << 20

// mostRead is what gRPC is to read of one message.
func mostRead(maxRequest int) int {
	return int(min(max(readFactor*int64(maxRequest), leastRead), math.MaxInt))
}

// Marshal implements encoding.CodecV2. gRPC frees the buffers that it is given;
// ours are plain memory, for which that means nothing.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*session.Response); ok {
		return r.Encode(), nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*incoming)
	if !ok {
		// Of health and reflection, whose requests are bounded too.
		if n := data.Len(); n > maxOtherRequest {
			return fmt.Errorf("a request of %d bytes, but this service reads no more than %d", n, maxOtherRequest)
		}
		return c.CodecV2.Unmarshal(data, v)
	}
	if n := data.Len(); c.maxRequest > 0 && n > c.maxRequest {
		r.excess = over(limitRequestBytes, n, c.maxRequest, "a request of %d bytes")
		return nil // gRPC would make it an error of its own
	}
	r.data = data.MaterializeToBuffer(mem.DefaultBufferPool())
	return nil
}

// maxOtherRequest is the length of a request to such a service, in bytes: it has a name.
const maxOtherRequest = 4 << 10
