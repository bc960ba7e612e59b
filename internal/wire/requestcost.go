package wire

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// RequestCost is what decoding a request would cost. Two bytes can encode an empty message, which
// takes a hundred bytes in memory. So the relay counts, before it decodes a request, the parts whose
// size no other limit bounds.
type RequestCost struct {
	TypeURL    int // bytes
	Node       int // bytes
	NodeValues int // messages and strings in the Node
	Locators   int
}

// NodeLimits are the limits beyond which a Node is not counted any further.
type NodeLimits struct{ Bytes, Values int }

// Cost counts the parts of a request. It stops where the request cannot be read; decoding will return
// the error.
func (f *RequestFields) Cost(request []byte, limits NodeLimits) (c RequestCost) {
	for len(request) > 0 {
		num, value, n := NextBytes(request)
		switch {
		case n == 0:
			if _, _, n = protowire.ConsumeField(request); n < 0 {
				return c
			}
		case num == f.TypeURL:
			c.TypeURL = max(c.TypeURL, len(value))
		case num == f.Node: // protobuf merges several
			c.Node += len(value)
			if c.Node <= limits.Bytes {
				c.NodeValues += countValues(value, nodeFields, 0, limits.Values)
			}
		case num == f.Locators || num == f.LocatorsUnsubscribe:
			c.Locators++
		}
		request = request[n:]
	}
	return c
}

// Values counts the messages and strings that are allocated when a message with these fields is decoded. It stops
// when there are more than most.
func Values(message []byte, fields protoreflect.FieldDescriptors, most int) int {
	return countValues(message, fields, 0, most)
}

var nodeFields = (*corev3.Node)(nil).ProtoReflect().Descriptor().Fields()

// MaxNesting bounds the nesting of a Node's metadata, because code that reads it, such as CEL,
// is recursive. Each level of nesting takes three nested messages.
const (
	MaxNesting   = 100
	maxNodeDepth = 3 * MaxNesting
)

// countValues counts what is allocated when a message is decoded: its strings and messages, at
// all levels. It counts too many rather than too few. It stops when there are more than most. A
// message that is nested too deeply counts as more than most.
func countValues(message []byte, fields protoreflect.FieldDescriptors, depth, most int) (values int) {
	if depth == maxNodeDepth {
		return most + 1
	}
	for len(message) > 0 {
		num, value, n := NextBytes(message)
		if n == 0 {
			if _, _, n = protowire.ConsumeField(message); n < 0 {
				return values
			}
		}
		message = message[n:]
		values++
		if values > most {
			return values
		}
		if field := fields.ByNumber(num); field != nil && field.Kind() == protoreflect.MessageKind {
			values += countValues(value, field.Message().Fields(), depth+1, most)
		}
	}
	return values
}
