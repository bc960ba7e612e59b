package configs

// This file is the keys of `listeners`.

import "time"

// Listener is one address on which the relay serves clients.
type Listener struct {
	// Where the relay listens: host:port, or unix:/path for a unix socket. An empty host means all
	// interfaces, and port 0 any free port.
	Address string `yaml:"address" required:"true"`
	// The permissions of the unix socket: who may connect.
	Mode FileMode `yaml:"mode" default:"0660"`
	// What clients speak: grpc, or rest for REST-JSON polling over HTTP/1.1 and HTTP/2 (POST
	// /v3/discovery:clusters and its siblings).
	Protocol ListenerProtocol `yaml:"protocol" default:"grpc"`
	// Whether the relay serves the v2 transport too: envoy.service.discovery.v2, envoy.api.v2,
	// and /v2/discovery:clusters and its siblings.
	V2 bool `yaml:"v2" default:"false"`
	// Whether the relay serves the Client Status Discovery Service (CSDS) to clients. Each client sees
	// the resources of streams of its own identity, as far as the rights allow (csds.md). Operators have
	// CSDS on the admin listener.
	CSDS bool `yaml:"csds" default:"false" with:"grpc"`
	// How long the relay holds a request that gets one answer (over REST, or by a Fetch method of gRPC)
	// while there is nothing new. If the client sends its own timeout, the relay answers before that:
	// gRPC clients send their deadline, and Envoy sends x-envoy-expected-rq-timeout-ms, which is its
	// request_timeout (1s by default). Other clients need a timeout above this one.
	LongPoll time.Duration `yaml:"long_poll" default:"30s"`
	// The largest request that the relay reads. A larger one ends the client's stream; over
	// REST it gets status 413.
	MaxRequestBytes Bytes `yaml:"max_request_bytes" default:"4MiB"`
	// The size above which the relay splits a response into several. It does not split a SotW response
	// that must have the full state. A larger resource gets a response of its own. The default is just
	// below what gRPC clients accept.
	MaxResponseBytes Bytes `yaml:"max_response_bytes" default:"4080KiB"`
	// What the relay sends for a redirect, which is an xds.core.v3.ResourceLocator in place of a
	// resource. It always follows redirects for SotW clients that do not announce
	// xds.config.supports-resource-in-sotw.
	//
	//	follow   the target, under the name that the client requested
	//	pass     the redirect itself, for relays behind this one
	Redirects Redirects `yaml:"redirects" default:"follow"`
	// Whether the relay requests the resources that a Listener, a RouteConfiguration or a Cluster refers
	// to, before the client does (prefetch.md). This is for streams, not for requests that get one
	// answer.
	Prefetch bool `yaml:"prefetch" default:"false" with:"grpc"`
	// Which streams the relay ends, with UNAVAILABLE, if it has none of the requested resources and
	// cannot reach the control planes. Clients that have a fallback server then try it (gRFC A71). Over
	// REST such requests get status 503.
	//
	//	auto   streams that subscribe by name only, as those of gRPC do
	//	end    also streams with a wildcard, a glob or a view
	//	wait   none
	WhenUnreachable WhenUnreachable `yaml:"when_unreachable" default:"auto" with:"grpc"`
	// Who may have resources of type Secret.
	//
	//	authenticated   clients that have proven who they are, and those on the relay's own
	//	                machine: over loopback or a unix socket
	//	anyone          every client
	Secrets Secrets `yaml:"secrets" default:"authenticated"`
	// What clients may cost the relay (limits.md). A client that exceeds a limit loses its stream; over
	// REST it gets status 429. If it exceeds a rate, the relay reads it more slowly. A request that gets
	// one answer counts as a stream until it is answered.
	Limits Limits `yaml:"limits"`
	// How fast the relay admits streams when many clients connect at once, as after its restart. Other
	// streams wait in a queue that is fair among identities, and among addresses (drain.md).
	Admission Admission `yaml:"admission" with:"grpc"`
	// How old a connection may become; the relay varies this at random by up to a quarter. Then the
	// relay closes the connection as in a drain, so that clients spread over replicas of the relay
	// (drain.md). 0s is no limit.
	MaxConnectionAge time.Duration `yaml:"max_connection_age" default:"0s" allow:"zero"`
	// HTTP/2 pings on connections on which nothing arrives. They detect clients that went away without
	// closing the connection. HTTP/1.1 has no pings.
	Keepalive Keepalive `yaml:"keepalive" default:"{time: 2m, timeout: 20s}"`
	// The windows of HTTP/2's flow control: how much a client may send before the relay has read it. At
	// least 64KiB each. The relay allocates no more than clients send. Smaller values are for clients
	// that are not trusted; they cost a little CPU for all clients.
	Windows Windows `yaml:"windows" default:"{stream: 1MiB, connection: 1MiB}" with:"grpc"`
	// The buffers that gRPC reads and writes with, from 1KiB to 4MiB each.
	Buffers Buffers `yaml:"buffers" with:"grpc"`
	// TLS towards clients. Files are PEM, and the relay reads them again when they change.
	TLS *ListenerTLS `yaml:"tls" absent:"plaintext"` // nil for plaintext
	// Bearer tokens that prove who a client is: JSON Web Tokens, in the metadata or header
	// `authorization`. A token that is not valid ends the stream with UNAUTHENTICATED; over REST the
	// request gets status 401.
	JWT *JWT `yaml:"jwt" absent:"tokens prove nothing"`
	// The PROXY protocol, versions 1 and 2: TCP balancers begin each connection with a header that has the
	// client's address. It is then the client's address for all purposes (security.md).
	ProxyProtocol *ProxyProtocol `yaml:"proxy_protocol" absent:"no connection begins with a header"`
	// Which clients the listener serves: an expression that gives a bool. It is CEL over `identity`, the
	// client's authenticated identity (security.md). If it is false, or the relay cannot evaluate it,
	// the client's stream ends with PERMISSION_DENIED; over REST it gets status 403.
	Admit string `yaml:"admit" absent:"everyone"`
	// Which clients are relays: an expression as `admit`. The relay announces to control planes only
	// through which of these clients' requests come, and so detects loops (relays.md).
	Relays string `yaml:"relays" absent:"those on the relay's own machine"`

	admit, relays program
}

// Limits are what the clients of a listener may cost.
type Limits struct {
	// Names that one stream subscribes to, all types together.
	Subscriptions int `yaml:"subscriptions" default:"100000"`
	// The length of a name.
	NameBytes Bytes `yaml:"name_bytes" default:"4KiB"`
	// Requests per second of one stream, or of one REST connection, on average.
	RequestsPerSecond int `yaml:"requests_per_second" default:"1000"`
	// Requests of one stream, or of one REST connection, in a burst.
	RequestBurst int `yaml:"request_burst" default:"5000"`
	// Open streams on the listener.
	Streams int `yaml:"streams" default:"100000"`
	// Scopes that one stream uses at once. A scope is an authority, a partition, or one of these with a
	// set of dynamic parameters. The relay refuses names of further scopes. A listener that serves other
	// relays needs as many scopes as all of their clients use (limits.md).
	Scopes int `yaml:"scopes" default:"100"`
	// Scopes that all streams of one gRPC connection together use at once.
	ScopesPerConnection int `yaml:"scopes_per_connection" default:"1000" with:"grpc"`
	// Open streams on one gRPC connection. A client that has as many waits with the next until one ends.
	// An Envoy has one or two streams, and a relay behind this one a few for each partition.
	StreamsPerConnection int `yaml:"streams_per_connection" absent:"as many as limits.streams" with:"grpc"` // 0 is no limit
	// Streams that a client opens on one gRPC connection per second, on average; four times as many in a
	// burst. If a client opens more, such as one that resets its streams, the relay reads its connection
	// more slowly.
	StreamsPerSecond int `yaml:"streams_per_second" default:"500" with:"grpc"`
	// Connections to the listener, with streams or without. The relay closes further ones at once. All
	// listeners together use at most nine tenths of the file descriptors that the process may have, in
	// equal shares. The rest is for control planes and files.
	Connections int `yaml:"connections" default:"100000"`
	// Connections per second from one address (in IPv6, one /64) that end within 5 seconds, on average;
	// four times as many in a burst. The relay delays further connections by up to 4 seconds. Longer
	// connections do not count, however many clients connect at once.
	ConnectionsPerSecond int `yaml:"connections_per_second" default:"200"`
	// Scopes that all streams of one identity together use at once, on all listeners. The identity of a
	// client that has not authenticated is its address (in IPv6, the /64).
	ScopesPerIdentity int `yaml:"scopes_per_identity" default:"10000"`
	// Types that all streams of one identity together request at once, on all listeners. Only types that
	// the relay does not know count.
	TypesPerIdentity int `yaml:"types_per_identity" default:"1000"`
	// Names that all streams of one identity together subscribe to, on all listeners. A list of names
	// that several streams send counts once.
	SubscriptionsPerIdentity int `yaml:"subscriptions_per_identity" default:"10000000"`
	// Open streams of one identity on all listeners.
	StreamsPerIdentity int `yaml:"streams_per_identity" absent:"as many as limits.streams"` // 0 is no limit
	// Requests per second of one identity that get one answer (over REST, or by a Fetch method of gRPC),
	// on average, on all of its connections; five times as many in a burst. The relay delays further
	// requests by up to a second, and refuses those that would wait longer.
	RequestsPerSecondPerIdentity int `yaml:"requests_per_second_per_identity" default:"10000"`
	// The part of the relay's memory, from more than 0 to 1, above which the relay refuses new names of
	// the clients that have the most names. The relay's memory is Go's memory limit, which the relay sets
	// from the container's; without one, nine tenths of the machine's. Garbage that Go can free does not
	// count.
	MemoryNames Ratio `yaml:"memory_names" default:"0.7"`
	// The part above which the relay ends streams of these clients.
	MemoryStreams Ratio `yaml:"memory_streams" default:"0.8"`
}

// Admission says how fast a listener admits streams.
type Admission struct {
	// Streams that the listener admits per second at most, on average. Without it, the relay admits them
	// as fast as it sends the first answers of others.
	StreamsPerSecond int `yaml:"streams_per_second" absent:"none"` // 0 is no limit
	// Streams that the listener admits in a burst, with streams_per_second.
	Burst int `yaml:"burst" default:"1000"`
	// How long a stream waits in the queue, with streams_per_second. Then the relay ends it with
	// UNAVAILABLE and the time after which the client may retry; at once, if it would wait longer. xDS
	// clients wait 15s for a resource, and that includes the time in the queue. With 0s no stream waits.
	Wait time.Duration `yaml:"wait" default:"10s" allow:"zero"`
	// The part of the cgroup's memory limit, from more than 0 to 1, above which the relay admits no
	// streams. Garbage that Go can free does not count. If the cgroup has no limit, memory does not
	// delay streams.
	Memory Ratio `yaml:"memory" default:"0.9"`
}

// Keepalive says when the relay pings over an HTTP/2 connection on which nothing arrives.
type Keepalive struct {
	// The time without data after which the relay sends a ping: at least 1s for clients, 10s for
	// servers.
	Time time.Duration `yaml:"time"`
	// How long the relay waits for the answer before it closes the connection.
	Timeout time.Duration `yaml:"timeout"`
}

// Windows are the windows of HTTP/2's flow control. They are static, so gRPC sends no pings to estimate
// better ones.
type Windows struct {
	// The window of one stream.
	Stream Bytes `yaml:"stream"`
	// The window of one connection, for all its streams together.
	Connection Bytes `yaml:"connection"`
}

// Buffers are how much gRPC reads and writes at once.
type Buffers struct {
	// How much gRPC reads at once. With TLS each connection always holds this much, without TLS only
	// while there is something to read. Larger buffers are for clients with large requests.
	Read Bytes `yaml:"read" default:"4KiB"`
	// How much gRPC writes at once. A connection holds this much only while there is something to
	// write. Larger buffers mean fewer system calls for large responses, and more memory while
	// the relay sends to many clients.
	Write Bytes `yaml:"write" default:"32KiB"`
}
