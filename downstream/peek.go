package downstream

import (
	"slices"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"
)

// Most requests acknowledge the newest response and say nothing new. In SotW each
// repeats all names, and many clients repeat their Node. To peek at those is enough:
// and not decoded.

// peeked is what can be seen of an encoded request without decoding it.
type peeked struct {
	typeURL, nonce []byte // parts of the request
	// asks is a hash over what it asks for, node one over its Node; 0 for nothing.
	asks, node uint64
	// more says that there is something else in it, or that it cannot be read.
	more bool
}

// requestFields are the numbers of a request's fields in one form.
type requestFields struct {
	typeURL, nonce, node, version protowire.Number
	// asks are those of what is asked for; the names are in subscribe and unsubscribe.
	asks                          []protowire.Number
	subscribe, unsubscribe        protowire.Number
	locators, locatorsUnsubscribe protowire.Number
	errorDetail                   protowire.Number
}

// Of DiscoveryRequest and DeltaDiscoveryRequest. In delta what a request asks for is
// a change, and so never nothing new.
var (
	sotwFields  = requestFields{version: 1, node: 2, typeURL: 4, nonce: 5, asks: []protowire.Number{3, 7}, subscribe: 3, locators: 7, errorDetail: 6}
	deltaFields = requestFields{node: 1, typeURL: 2, nonce: 6, subscribe: 3, unsubscribe: 4, locators: 8, locatorsUnsubscribe: 9, errorDetail: 7}
)

// see glances at an encoded request.
func (f *requestFields) peek(request []byte) (g peeked) {
	var asks xxhash.Digest
	asks.Reset()
	run := 0 // bytes before the rest that are of fields that ask, and not hashed yet
	for rest := request; ; {
		num, value, n := nextBytes(rest)
		ask := n > 0 && slices.Contains(f.asks, num)
		if ask {
			run += n
			rest = rest[n:]
			continue
		}
		if run > 0 {
			at := len(request) - len(rest)
			_, _ = asks.Write(request[at-run : at])
			run, g.asks = 0, asks.Sum64()|1
		}
		switch {
		case len(rest) == 0:
			return g
		case n == 0:
			g.more = true
			return g
		case num == f.typeURL:
			g.typeURL = value
		case num == f.nonce:
			g.nonce = value
		case num == f.node && g.node == 0: // of two, they would be merged
			g.node = xxhash.Sum64(value) | 1
		case num == f.version:
		default:
			g.more = true
			return g
		}
		rest = rest[n:]
	}
}

// nextBytes reads a length-delimited field, of n bytes in all: none if there is
// another one, or none that can be read.
func nextBytes(b []byte) (num protowire.Number, value []byte, n int) {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 || typ != protowire.BytesType {
		return 0, nil, 0
	}
	value, m := protowire.ConsumeBytes(b[n:])
	if m < 0 {
		return 0, nil, 0
	}
	return num, value, n + m
}
