package upstream

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// DialOptions are the settings of a connection. The zero value of each means its
// default.
type DialOptions struct {
	// TLS are the credentials. The default is plaintext.
	TLS credentials.TransportCredentials
	// KeepaliveTime is after how much silence the server is asked whether it
	// lives. A server may end connections that ask more often than it allows; the
	// default, 5 minutes, is allowed by every gRPC server that has not been set
	// otherwise.
	KeepaliveTime time.Duration
	// KeepaliveTimeout is how long the answer to that, or to anything else that
	// was sent, may take. The default is 20 s.
	KeepaliveTimeout time.Duration
	// ProbeAfter is after how much silence that follows a request the server is asked
	// for its health, to see whether the connection still brings anything, and
	// ProbeTimeout is how long that may take until something comes. The default is 10 s
	// for each.
	ProbeAfter, ProbeTimeout time.Duration
	// MaxConnections is how many connections there may be, if the server limits the
	// streams on one: 100 by default. When they are full, further streams fail.
	MaxConnections int
	// MakeRoom, if not nil, is called when they are full and a stream is to be opened. It
	// has another stream end that nobody needs, soon, and returns false if there is none.
	MakeRoom func() bool
	// StreamWindow and ConnWindow are how much the server may send that has not been
	// taken, in bytes: the defaults are 1 MiB and 4 MiB, enough for most responses to
	// come without a wait. Both are static.
	StreamWindow, ConnWindow int32
	// MaxResponseBytes is the length of the longest response. The default is
	// 256 MiB: a SotW response is the whole state, and cannot be split.
	MaxResponseBytes int
	// UserAgent is the beginning of the user agent.
	UserAgent string
	// Extra are further options of gRPC, after the others.
	Extra []grpc.DialOption
}

// connectTimeout is how long a control plane may take to accept a connection, TLS and
// HTTP/2 included, before it counts as one that cannot be reached: some that are gone
// refuse nothing, and clients with a server of their own to fall back to wait for the
// relay to say so. gRPC goes on connecting meanwhile, so one that takes longer is not
// lost.
const connectTimeout = 3 * time.Second

const (
	defaultKeepaliveTime    = 5 * time.Minute
	defaultKeepaliveTimeout = 20 * time.Second
	defaultProbeAfter       = 10 * time.Second
	defaultProbeTimeout     = 10 * time.Second
	defaultMaxConnections   = 100
	defaultMaxResponseBytes = 256 << 20
	defaultStreamWindow     = 1 << 20
	defaultConnWindow       = 4 << 20
	// The longest time between attempts to connect, and for one. Streams back off
	// too, so that a long one here would only add to theirs.
	maxConnectDelay   = 5 * time.Second
	minConnectTimeout = 10 * time.Second
)

// or returns v, or the default for the zero value.
func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
