package wire

import (
	"slices"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"
)

// RequestFields are the numbers of a request's fields, 0 for fields that it does not have.
type RequestFields struct {
	TypeURL, Nonce, Node, Version, ErrorDetail protowire.Number
	// Subscribe and Unsubscribe have the names. In SotW, Subscribe has all names.
	Subscribe, Unsubscribe        protowire.Number
	Locators, LocatorsUnsubscribe protowire.Number
	// state are the fields with all names and locators to which the client subscribes. There are
	// none in delta, where a request has only changes.
	state []protowire.Number
}

// The fields of DiscoveryRequest and DeltaDiscoveryRequest.
var (
	SotWRequest  = RequestFields{Version: 1, Node: 2, TypeURL: 4, Nonce: 5, Subscribe: 3, Locators: 7, ErrorDetail: 6, state: []protowire.Number{3, 7}}
	DeltaRequest = RequestFields{Node: 1, TypeURL: 2, Nonce: 6, Subscribe: 3, Unsubscribe: 4, Locators: 8, LocatorsUnsubscribe: 9, ErrorDetail: 7}
)

// Peeked is the result of [RequestFields.Peek].
type Peeked struct {
	TypeURL, Nonce []byte // parts of the request
	// State is a hash over the names and locators of a SotW request, Node a hash over the Node.
	// Each is 0 if there are none.
	State, Node uint64
	// More: the request has other fields, or cannot be read.
	More bool
}

// Peek walks over a request until it finds a field that is not part of Peeked. Most requests have
// no such field: they acknowledge the newest response, and repeat the names (in SotW) and, from
// many clients, the Node. The relay need not decode such a request.
func (f *RequestFields) Peek(request []byte) (p Peeked) {
	var state xxhash.Digest
	state.Reset()
	run := 0 // number of bytes before rest that belong to the state and are not hashed yet
	for rest := request; ; {
		num, value, n := NextBytes(rest)
		if n > 0 && slices.Contains(f.state, num) {
			run += n
			rest = rest[n:]
			continue
		}
		if run > 0 {
			offset := len(request) - len(rest)
			_, _ = state.Write(request[offset-run : offset])
			run, p.State = 0, state.Sum64()|1
		}
		switch {
		case len(rest) == 0:
			return p
		case n == 0:
			p.More = true
			return p
		case num == f.TypeURL:
			p.TypeURL = value
		case num == f.Nonce:
			p.Nonce = value
		case num == f.Node && p.Node == 0: // protobuf would merge a second Node
			p.Node = xxhash.Sum64(value) | 1
		case num == f.Version:
		default:
			p.More = true
			return p
		}
		rest = rest[n:]
	}
}

// Outline says where the parts of a request are.
type Outline struct {
	// Names are the names to which the request subscribes. Node is the Node, if there is exactly one.
	Names, Node Run
	// Cost has no NodeValues.
	Cost RequestCost
}

// Run is the position of consecutive fields with one number in a message. If the fields are not consecutive, or there
// are none, Count is 0.
type Run struct{ From, To, Count int }

func (r *Run) add(offset, size int) {
	switch {
	case r.To == 0:
		*r = Run{From: offset, To: offset + size, Count: 1}
	case r.Count > 0 && r.To == offset:
		r.To, r.Count = offset+size, r.Count+1
	default:
		r.Count = 0
	}
}

// Outline finds the parts of a request. The runs of the result are empty if the request cannot be read.
func (f *RequestFields) Outline(request []byte) (o Outline) {
	for offset := 0; offset < len(request); {
		num, value, size := NextBytes(request[offset:])
		switch {
		case size == 0:
			if _, _, size = protowire.ConsumeField(request[offset:]); size < 0 {
				return Outline{Cost: o.Cost}
			}
		case num == f.Subscribe:
			o.Names.add(offset, size)
		case num == f.TypeURL:
			o.Cost.TypeURL = max(o.Cost.TypeURL, len(value))
		case num == f.Node:
			o.Node.add(offset, size)
			o.Cost.Node += len(value)
		case num == f.Locators || num == f.LocatorsUnsubscribe:
			o.Cost.Locators++
		}
		offset += size
	}
	if o.Node.Count > 1 { // protobuf merges them
		o.Node = Run{}
	}
	return o
}

// NextBytes reads the first field of a message if it is a string, bytes or a message. n is
// the length of the field, including its tag. n is 0 if the first field has another type or
// cannot be read, and at the end of the message.
func NextBytes(message []byte) (num protowire.Number, value []byte, n int) {
	// Names mostly have a tag and a length of one byte each.
	if len(message) >= 2 && message[0] < 1<<7 && message[1] < 1<<7 {
		num, typ := protowire.DecodeTag(uint64(message[0]))
		if end := 2 + int(message[1]); typ == protowire.BytesType && num > 0 && end <= len(message) {
			return num, message[2:end:end], end
		}
	}
	num, typ, n := protowire.ConsumeTag(message)
	if n < 0 || typ != protowire.BytesType {
		return 0, nil, 0
	}
	value, m := protowire.ConsumeBytes(message[n:])
	if m < 0 {
		return 0, nil, 0
	}
	return num, value, n + m
}
