// Package chain finds loops of relays. Relays that are clients of each other would wait for
// each other forever.
//
// A relay announces, on its streams to control planes, the relays through which its clients
// come. It refuses a client that has come through itself. A relay without relays among its
// clients is not announced: no loop goes through it, and thousands of them may come and go.
package chain

// This file has the chain as it is sent in a header; table.go merges the chains of a
// scope's clients.

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// RelayHeader is the name of the gRPC header by which a relay says that it serves a stream. It sends
// the header only to relays. Those of earlier versions pass their clients' NACKs on only to a relay.
const RelayHeader = "x-xds-relay"

// Header is the name of the HTTP header, or gRPC metadata, with the chain.
const Header = "x-xds-relay-chain"

// IDHeader is the name of the gRPC metadata with a relay's own id, escaped as in a chain. The relay upstream tells relays
// with one certificate apart by it, and does not announce it.
const IDHeader = "x-xds-relay-id"

// Limits of a chain.
const (
	MaxRelays  = 64
	MaxIDBytes = 256
)

// anonymous stands for a relay at the beginning of a chain. No escaped id looks like it.
const anonymous = "*"

// Chain is the relays through which a client comes; the client itself is the last one. The
// zero Chain belongs to a client that is no relay.
type Chain struct {
	Relay bool
	// IDs leaves out the relay at the beginning of the chain.
	IDs []string
}

// Parse parses the values of a header. Without any it returns the zero Chain.
func Parse(values []string) (Chain, error) {
	var c Chain
	for _, value := range values {
		for text := range strings.SplitSeq(value, ",") {
			c.Relay = true
			if text = strings.TrimSpace(text); text == "" || text == anonymous {
				continue
			}
			if len(c.IDs) == MaxRelays {
				return Chain{}, fmt.Errorf("%s has more than %d relays", Header, MaxRelays)
			}
			if len(text) > 3*MaxIDBytes {
				return Chain{}, tooLong(text[:32])
			}
			id, err := url.QueryUnescape(text)
			if err != nil {
				return Chain{}, fmt.Errorf("%s: %w", Header, err)
			}
			if len(id) > MaxIDBytes {
				return Chain{}, tooLong(id[:32])
			}
			if !slices.Contains(c.IDs, id) {
				c.IDs = append(c.IDs, id)
			}
		}
	}
	return c, nil
}

func tooLong(beginning string) error {
	return fmt.Errorf("%s has an id of more than %d bytes, beginning with %q", Header, MaxIDBytes, beginning)
}

// String returns the header's value.
func (c Chain) String() string {
	if len(c.IDs) == 0 {
		return anonymous
	}
	escaped := make([]string, len(c.IDs))
	for i, id := range c.IDs {
		escaped[i] = url.QueryEscape(id)
	}
	return strings.Join(escaped, ",")
}

// LoopError is the error for a client that is, perhaps through others, its own client.
type LoopError struct {
	// IDs are the relays of the loop, beginning and ending with the one that found it.
	IDs []string
}

const (
	loopWords = "loop of relays: "
	arrow     = " -> "
)

func (e *LoopError) Error() string { return loopWords + strings.Join(e.IDs, arrow) }

// refuser returns which of these relays has refused a stream as a loop, with a text that contains a LoopError's. The
// text may have been cut.
func refuser(text string, ids []string) (id string, loop *LoopError) {
	_, shown, _ := strings.Cut(text, loopWords)
	i := slices.IndexFunc(ids, func(id string) bool { return strings.HasPrefix(shown, id+arrow) })
	if i < 0 {
		return "", nil
	}
	return ids[i], &LoopError{IDs: strings.Split(shown, arrow)}
}

// Check returns a *LoopError if the chain contains the relay with that id.
func (c Chain) Check(own string) error {
	i := slices.Index(c.IDs, own)
	if i < 0 {
		return nil
	}
	return &LoopError{IDs: append(slices.Clone(c.IDs[i:]), own)}
}
