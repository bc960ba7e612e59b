// Package chain finds relays that ask each other in a circle: each would wait for
// the other for ever, and both would say that nothing is there yet.
//
// A relay says on its streams to control planes through which relays its clients
// have come, and refuses a client that has come through itself. Relays that only
// begin a chain, having no relays among their clients, are not named: no circle
// goes through them, and there may be thousands, which come and go.
package chain

// This file is one chain, as it goes over the wire; table.go puts together those of
// a scope's clients.

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Header is the name of the header, in gRPC the metadata, that has the chain.
const Header = "x-xds-relay-chain"

// What a chain may have.
const (
	MaxRelays  = 64
	MaxIDBytes = 256
)

// anonymous stands for a relay that begins a chain. No escaped id looks so.
const anonymous = "*"

// Chain is the relays through which a client asks, the one that asks last. The
// zero Chain is that of a client that is no relay.
type Chain struct {
	Relay bool
	// IDs does not have a relay that begins the chain.
	IDs []string
}

// Parse reads the values of a header. None at all are the zero Chain.
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
	return fmt.Errorf("%s has an id of more than %d bytes, which begins %q", Header, MaxIDBytes, beginning)
}

// String returns the value of the header.
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

// LoopError is for a client that asks a relay which asks that client.
type LoopError struct {
	// IDs are the relays from the one that found it to itself.
	IDs []string
}

func (e *LoopError) Error() string {
	return "relays ask each other in a circle: " + strings.Join(e.IDs, " -> ")
}

// Check returns a *LoopError if the chain goes through the relay of that id.
func (c Chain) Check(own string) error {
	i := slices.Index(c.IDs, own)
	if i < 0 {
		return nil
	}
	return &LoopError{IDs: append(slices.Clone(c.IDs[i:]), own)}
}
