package downstream

import (
	"fmt"
	"math"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// codec is gRPC's proto codec with two differences. A response is ready-made and goes out unchanged, in buffers that
// streams share. A request that is too long is not decoded, but marked as too long.
type codec struct {
	encoding.CodecV2
	maxRequest int // bytes; 0 for no limit
}

func newCodec(maxRequest int) codec {
	return codec{CodecV2: encoding.GetCodecV2(proto.Name), maxRequest: maxRequest}
}

// incoming receives a request, which stays encoded in data; the reader frees it. large is nil for most requests.
type incoming struct {
	data  mem.Buffer
	large *largeIncoming
}

// readFactor: gRPC reads requests up to so many times the listener's limit, or leastRead if that is more, so that the
// relay can name the limit that a request exceeds. If a request is longer still, gRPC ends the stream before the relay
// sees it.
const readFactor = 4

// leastRead is what gRPC reads however small the limit is, and what it reads with the default limit.
const leastRead = 16 << 20

// mostRead is the longest message that gRPC reads.
func mostRead(maxRequest int) int {
	return int(min(max(readFactor*int64(maxRequest), leastRead), math.MaxInt))
}

// Marshal implements encoding.CodecV2. gRPC frees the buffers that it is given; the relay's are plain memory, for which
// freeing does nothing.
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
		// Health and reflection: their requests are bounded, too.
		if n := data.Len(); n > maxOtherRequest {
			return fmt.Errorf("a request of %d bytes, but this service reads no more than %d", n, maxOtherRequest)
		}
		return c.CodecV2.Unmarshal(data, v)
	}
	if n := data.Len(); c.maxRequest > 0 && n > c.maxRequest {
		r.large = &largeIncoming{excess: over(limitRequestBytes, n, c.maxRequest, "a request of %d bytes")}
		return nil // gRPC would turn an error into one of its own
	}
	if data.Len() > largeRequest {
		data.Ref()
		r.large = &largeIncoming{parts: data}
		return nil
	}
	r.data = data.MaterializeToBuffer(mem.DefaultBufferPool())
	return nil
}

// maxOtherRequest is the length limit of a request to such a service, in bytes: it contains one name.
const maxOtherRequest = 4 << 10
