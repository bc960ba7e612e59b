package main

import (
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	goproto "google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/wire"
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

// requestFields are the numbers of the fields of requests in a form.
func requestFields(delta bool) *wire.RequestFields {
	if delta {
		return &wire.DeltaRequest
	}
	return &wire.SotWRequest
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
		return wire.AppendBytes(nil, wire.ResponseResources, content)
	}
	return resourceField(name, s.alias(i), v, s.TTL, content)
}

func anyOf(typeURL string, value []byte) []byte {
	return wire.AppendBytes(wire.AppendString(nil, wire.AnyTypeURL, typeURL), wire.AnyValue, value)
}

// resourceField returns a resource as a field of a delta response or, without content, its
// heartbeat.
func resourceField(name, alias string, v int, ttl time.Duration, content []byte) []byte {
	r := wire.AppendString(nil, wire.ResourceName, name)
	if alias != "" {
		r = wire.AppendString(r, wire.ResourceAliases, alias)
	}
	r = wire.AppendString(r, wire.ResourceVersion, version(v))
	if ttl > 0 {
		r = wire.AppendDuration(r, wire.ResourceTTL, ttl)
	}
	if content != nil {
		r = wire.AppendBytes(r, wire.ResourceAny, content)
	}
	return wire.AppendBytes(nil, wire.ResponseResources, r)
}

// tail returns the fields of a response other than its resources and its nonce.
func (s *Spec) tail(v int, delta bool) []byte {
	b := wire.AppendString(nil, wire.ResponseTypeURL, s.typeURL())
	if !delta {
		b = wire.AppendString(b, wire.ResponseVersion, version(v))
	}
	return b
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
	num, f := requestFields(delta), wire.Walk(b)
	for f.Next() {
		switch f.Num {
		case num.Subscribe:
			r.names = append(r.names, string(f.Bytes))
		case num.Unsubscribe:
			r.dropped = append(r.dropped, string(f.Bytes))
		case num.TypeURL:
			r.typeURL = string(f.Bytes)
		case num.Nonce:
			r.nonce = string(f.Bytes)
		case num.Version:
			r.version = string(f.Bytes)
		}
	}
	return r, f.Err
}
