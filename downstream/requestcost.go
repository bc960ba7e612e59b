package downstream

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What a request would cost when it is decoded, found by walking its fields. Two bytes
// can encode an empty message, which takes a hundred in memory: so the parts whose size
// no other limit bounds are looked at before they are decoded.

// peeked is what a walk of an encoded request has counted.
type requestCost struct {
	typeURL  int // bytes
	node     int // bytes
	values   int // messages and texts in the Node
	locators int
	details  int // values in an error's details, which are JSON
}

// peek counts what is in an encoded request. It ends where the request cannot be read:
// who decodes it finds out why.
func (f *requestFields) cost(request []byte) (p requestCost) {
	for len(request) > 0 {
		num, value, n := nextBytes(request)
		switch {
		case n == 0:
			if _, _, n = protowire.ConsumeField(request); n < 0 {
				return p
			}
		case num == f.typeURL:
			p.typeURL = max(p.typeURL, len(value))
		case num == f.node: // of several, they are merged
			p.node += len(value)
			if p.node <= maxNodeBytes {
				p.values += countValues(value, nodeFields, 0)
			}
		case num == f.locators || num == f.locatorsUnsubscribe:
			p.locators++
		}
		request = request[n:]
	}
	return p
}

var nodeFields = (*corev3.Node)(nil).ProtoReflect().Descriptor().Fields()

// maxNesting is how deeply a Node's metadata may be nested: those who read it, as CEL
// does, are recursive. Each level of it is three messages, one in another.
const (
	maxNesting   = 100
	maxNodeDepth = 3 * maxNesting
)

// countValues counts what is allocated when an encoded message is decoded: its texts
// and messages, and those in them. It counts too many rather than too few; what is
// nested too deeply counts as if it were too much.
func countValues(message []byte, fields protoreflect.FieldDescriptors, depth int) (values int) {
	if depth == maxNodeDepth {
		return maxNodeValues + 1
	}
	for len(message) > 0 {
		num, value, n := nextBytes(message)
		if n == 0 {
			if _, _, n = protowire.ConsumeField(message); n < 0 {
				return values
			}
		}
		message = message[n:]
		values++
		if values > maxNodeValues {
			return values
		}
		if field := fields.ByNumber(num); field != nil && field.Kind() == protoreflect.MessageKind {
			values += countValues(value, field.Message().Fields(), depth+1)
		}
	}
	return values
}

// fewLocators take too little memory to be refused before it is known which of them are
// the same.
const fewLocators = 1000

// over holds a request that is not decoded yet against the limits.
func (p requestCost) over(l Limits) *excess {
	if e := overTypeURL(p.typeURL); e != nil {
		return e
	}
	if e := over(limitNodeBytes, p.node, maxNodeBytes, "a node of %d bytes"); e != nil {
		return e
	}
	if e := over(limitNodeValues, p.values, maxNodeValues, "a node of %d values or more"); e != nil {
		return e
	}
	if e := over(limitNodeValues, p.details, maxNodeValues, "an error_detail of %d values"); e != nil {
		return e
	}
	if p.locators <= fewLocators {
		return nil // what they come to is counted when they are decoded
	}
	return over(limitSubscriptions, p.locators, l.Subscriptions, "%d locators in a request")
}

func overTypeURL(bytes int) *excess {
	return over(limitTypeURLBytes, bytes, maxTypeURLBytes, "a type URL of %d bytes")
}

// withoutDetails returns an encoded google.rpc.Status without its details, which nobody
// here reads.
func withoutDetails(status []byte) []byte {
	const details protowire.Number = 3
	var kept []byte
	for rest := status; len(rest) > 0; {
		num, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			return status // which is not decodable
		}
		if num != details {
			kept = append(kept, rest[:n]...)
		}
		rest = rest[n:]
	}
	return kept
}
