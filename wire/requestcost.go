package wire

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// RequestCost is what a request would cost when it is decoded. Two bytes can encode an empty
// message, which takes a hundred in memory: so parts are counted before they are decoded if no
// other limit bounds their size.
type RequestCost struct {
	TypeURL    int // bytes
	Node       int // bytes
	NodeValues int // messages and texts in the Node
	Locators   int
}

// NodeLimits end the counting of a Node that is over them anyway.
type NodeLimits struct{ Bytes, Values int }

// Cost counts what is in a request. It ends where the request cannot be read: who decodes it
// finds out why.
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
		case num == f.Node: // of several, they are merged
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

// Values counts what is allocated when a message with these fields is decoded, and ends when that is more
// than most.
func Values(message []byte, fields protoreflect.FieldDescriptors, most int) int {
	return countValues(message, fields, 0, most)
}

var nodeFields = (*corev3.Node)(nil).ProtoReflect().Descriptor().Fields()

// MaxNesting is how deeply a Node's metadata may be nested: those who read it, as CEL
// does, are recursive. Each level of it is three messages, one in another.
const (
	MaxNesting   = 100
	maxNodeDepth = 3 * MaxNesting
)

// countValues counts what is allocated when a message is decoded: its texts and messages, and
// those in them. It counts too many rather than too few. It ends when there are more than
// most, and a message that is nested too deeply counts as more than most.
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
