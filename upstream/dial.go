package upstream

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// DialOptions are the settings of a connection. The zero value of a field stands for its
// default.
type DialOptions struct {
	// TLS are the credentials. The default is plaintext.
	TLS credentials.TransportCredentials
	// KeepaliveTime is the silence after which gRPC pings the server. A server may close the
	// connection of a client that pings more often than it allows. Every gRPC server with default
	// settings allows the default, 5 minutes.
	KeepaliveTime time.Duration
	// KeepaliveTimeout is how long the server may take to answer a ping, or to acknowledge
	// anything else that was sent. The default is 20 s.
	KeepaliveTimeout time.Duration
	// ProbeAfter is the silence after a request that makes the relay probe the connection: it
	// calls the server's health service. If nothing comes on the connection within ProbeTimeout,
	// the relay closes it. The default is 10 s for each.
	ProbeAfter, ProbeTimeout time.Duration
	// MaxConnections bounds the connections to a server that limits the streams on each: 100 by
	// default. When all of them are full, further streams fail.
	MaxConnections int
	// MakeRoom, if not nil, is called when all connections are full and a stream is to be opened.
	// It makes another stream end soon that nobody needs, and returns false if there is none.
	MakeRoom func() bool
	// StreamWindow and ConnWindow are the HTTP/2 flow control windows, in bytes: how much the
	// server may send before the relay has read it. The defaults are 1 MiB and 4 MiB, enough for
	// most responses to come without a wait. Both are static.
	StreamWindow, ConnWindow int32
	// MaxResponseBytes is the length of the longest response. The default is
	// 256 MiB: a SotW response is the whole state, and cannot be split.
	MaxResponseBytes int
	// LargeResponse, if not nil, is called with the length in bytes of each response of 1 MiB and more, when its first
	// bytes come: compressed, if the server compresses. It must not block, and is called concurrently.
	LargeResponse func(bytes int)
	// UserAgent is the beginning of the user agent.
	UserAgent string
	// Extra are further options of gRPC, which follow the others.
	Extra []grpc.DialOption
}

// connectTimeout is how long a control plane may take to accept a connection, TLS and
// HTTP/2 included, before it counts as unreachable. Some servers that are gone do not refuse
// connections, and clients with a server of their own to fall back to wait for the
// relay's error. gRPC goes on connecting, so a slow connection is not lost.
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
	// The longest time between attempts to connect, and the time for one attempt. Streams back off
	// too: a longer delay here would only add to theirs.
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
