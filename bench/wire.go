package main

import (
	"fmt"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	goproto "google.golang.org/protobuf/proto"
)

// Messages as bytes: encoded messages are sent as they are, and received ones are decoded only
// as far as necessary.

// ready is an encoded message: shared buffers, and private ones.
type ready struct{ parts mem.BufferSlice }

// raw is a received message.
type raw struct{ data []byte }

// rawCodec passes ready and raw through, and uses gRPC's codec for other messages.
type rawCodec struct{ encoding.CodecV2 }

func newRawCodec() rawCodec { return rawCodec{encoding.GetCodecV2(proto.Name)} }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*ready); ok {
		return r.parts, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*raw)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	n := data.Len()
	if cap(r.data) < n {
		r.data = make([]byte, n)
	}
	r.data = r.data[:n]
	data.CopyTo(r.data)
	return nil
}

// The fields of the four messages. Fields with the same meaning have the same numbers in both
// responses, and in both requests.
const (
	respVersion   = 1
	respResources = 2
	respType      = 4
	respNonce     = 5
	respRemoved   = 6

	reqVersion = 1 // SotW
	reqNode    = 2 // SotW; delta: 1
	reqNames   = 3 // SotW; delta: subscribe
	reqDrop    = 4 // delta: unsubscribe
	sotwType   = 4
	sotwNonce  = 5
	deltaNode  = 1
	deltaType  = 2
	deltaNonce = 6

	nodeFeatures = 10
)

func appendString(b []byte, num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func appendBytes(b []byte, num protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

// encodeResource returns the i-th resource as a field of a response.
func (s *Spec) encodeResource(i, v int, delta bool) []byte {
	return s.encodeNamed(s.name(i), i, v, delta)
}

// encodeNamed is encodeResource with another name.
func (s *Spec) encodeNamed(name string, i, v int, delta bool) []byte {
	value, err := goproto.Marshal(s.resourceNamed(name, v))
	if err != nil {
		panic(err) // the message is our own
	}
	content := anyOf(s.typeURL(), value)
	if !delta {
		return appendBytes(nil, respResources, content)
	}
	return resourceField(name, s.alias(i), v, s.TTL, content)
}

func anyOf(typeURL string, value []byte) []byte {
	return appendBytes(appendString(nil, 1, typeURL), 2, value)
}

// resourceField returns a resource as a field of a delta response or, without content, its
// heartbeat.
func resourceField(name, alias string, v int, ttl time.Duration, content []byte) []byte {
	r := appendString(nil, 3, name)
	if alias != "" {
		r = appendString(r, 4, alias)
	}
	r = appendString(r, 1, version(v))
	if ttl > 0 {
		seconds := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(ttl/time.Second))
		r = appendBytes(r, 6, seconds)
	}
	if content != nil {
		r = appendBytes(r, 2, content)
	}
	return appendBytes(nil, respResources, r)
}

// tail returns the fields of a response other than its resources and its nonce.
func (s *Spec) tail(v int, delta bool) []byte {
	b := appendString(nil, respType, s.typeURL())
	if !delta {
		b = appendString(b, respVersion, version(v))
	}
	return b
}

// fields calls f for each length-delimited field.
func fields(b []byte, f func(num protowire.Number, v []byte)) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("bad message: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return fmt.Errorf("bad message: %w", protowire.ParseError(n))
			}
			f(num, v)
			b = b[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return fmt.Errorf("bad message: %w", protowire.ParseError(n))
		}
		b = b[n:]
	}
	return nil
}

// request has the fields of a request that are read.
type request struct {
	version, nonce string
	names, dropped []string
	typeURL        string
	bytes          int
}

func parseRequest(b []byte, delta bool) (r request, err error) {
	r.bytes = len(b)
	err = fields(b, func(num protowire.Number, v []byte) {
		switch {
		case num == reqNames:
			r.names = append(r.names, string(v))
		case delta && num == reqDrop:
			r.dropped = append(r.dropped, string(v))
		case delta && num == deltaType, !delta && num == sotwType:
			r.typeURL = string(v)
		case delta && num == deltaNonce, !delta && num == sotwNonce:
			r.nonce = string(v)
		case !delta && num == reqVersion:
			r.version = string(v)
		}
	})
	return r, err
}
