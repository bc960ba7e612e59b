package configs

// This file is the values that have a notation of their own: sizes and
// protocols. Both are encoding.TextUnmarshalers, and their errors say what
// would be right.

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size in bytes, from 1 to 2 GiB - 1. In YAML it is a number, or a
// number with KiB, MiB or GiB.
type Bytes int

var units = []struct {
	suffix string
	size   int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// UnmarshalText sets b from its notation.
func (b *Bytes) UnmarshalText(text []byte) error {
	for _, unit := range units {
		digits, ok := strings.CutSuffix(string(text), unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 32)
		if err != nil || n <= 0 || n*unit.size > math.MaxInt32 {
			break
		}
		*b = Bytes(n * unit.size)
		return nil
	}
	return fmt.Errorf("%q is not a size (want bytes, from 1 to 2 GiB - 1, such as 4194304 or 4MiB)", text)
}

// String returns b in the largest unit that divides it.
func (b Bytes) String() string {
	for _, unit := range units {
		if b != 0 && int64(b)%unit.size == 0 {
			return strconv.FormatInt(int64(b)/unit.size, 10) + unit.suffix
		}
	}
	return "0"
}

// ListenerProtocol is what is spoken on a listener.
type ListenerProtocol string

// The protocols of listeners.
const (
	ListenerGRPC ListenerProtocol = "grpc"
	ListenerREST ListenerProtocol = "rest" // REST-JSON, over HTTP
)

// UnmarshalText sets p from its notation.
func (p *ListenerProtocol) UnmarshalText(text []byte) error {
	switch q := ListenerProtocol(text); q {
	case ListenerGRPC, ListenerREST:
		*p = q
		return nil
	}
	return fmt.Errorf("%q is not a protocol of listeners (want %s or %s)", text, ListenerGRPC, ListenerREST)
}

// Redirects is what becomes of resources that are redirects, on a listener.
// TP1: "Server redirects".
type Redirects string

// What can become of them.
const (
	RedirectsFollow Redirects = "follow" // the client gets what they lead to
	RedirectsPass   Redirects = "pass"   // the client gets them as they are
)

// UnmarshalText sets r from its notation.
func (r *Redirects) UnmarshalText(text []byte) error {
	switch q := Redirects(text); q {
	case RedirectsFollow, RedirectsPass:
		*r = q
		return nil
	}
	return fmt.Errorf("%q is not what can be done with redirects (want %s or %s)", text, RedirectsFollow, RedirectsPass)
}

// WhenUnreachable says which streams of a listener end while nothing can be served on
// them. gRFC A71: "xDS Fallback".
type WhenUnreachable string

// Which streams can end.
const (
	UnreachableAuto WhenUnreachable = "auto" // those that ask by name only
	UnreachableEnd  WhenUnreachable = "end"  // those with a wildcard or a glob too
	UnreachableWait WhenUnreachable = "wait" // none
)

// UnmarshalText sets w from its notation.
func (w *WhenUnreachable) UnmarshalText(text []byte) error {
	switch v := WhenUnreachable(text); v {
	case UnreachableAuto, UnreachableEnd, UnreachableWait:
		*w = v
		return nil
	}
	return fmt.Errorf("%q is not what streams can do when a control plane cannot be reached (want %s, %s or %s)", text, UnreachableAuto, UnreachableEnd, UnreachableWait)
}

// Protocol is the form of xDS that is spoken with a server.
type Protocol string

// The protocols.
const (
	ProtocolAuto  Protocol = "auto"  // delta, and SotW with servers that do not know delta
	ProtocolDelta Protocol = "delta" // incremental
	ProtocolSotW  Protocol = "sotw"  // state of the world
	ProtocolREST  Protocol = "rest"  // state of the world in JSON, by polling
)

// UnmarshalText sets p from its notation.
func (p *Protocol) UnmarshalText(text []byte) error {
	switch q := Protocol(text); q {
	case ProtocolAuto, ProtocolDelta, ProtocolSotW, ProtocolREST:
		*p = q
		return nil
	}
	return fmt.Errorf("%q is not a protocol (want %s, %s, %s or %s)", text, ProtocolAuto, ProtocolDelta, ProtocolSotW, ProtocolREST)
}

// FailoverPolicy says what of an authority that cannot be reached is replaced.
type FailoverPolicy string

// The policies of failover.
const (
	PolicyMissing     FailoverPolicy = "missing"     // what is not held; gRFC A71
	PolicyUnreachable FailoverPolicy = "unreachable" // everything, after a grace time
)

// UnmarshalText sets p from its notation.
func (p *FailoverPolicy) UnmarshalText(text []byte) error {
	switch q := FailoverPolicy(text); q {
	case PolicyMissing, PolicyUnreachable:
		*p = q
		return nil
	}
	return fmt.Errorf("%q is not a policy of failover (want %s or %s)", text, PolicyMissing, PolicyUnreachable)
}
