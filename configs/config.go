// Package configs is the relay's configuration: its YAML schema, the defaults
// that make most of it optional, and the checks that say everything that is
// wrong with a file at once, each with its place and what would be right.
//
// A Config comes from Load or Parse, which check it, fill in the defaults and
// compile its expressions. It is not changed afterwards, so any number of
// goroutines may read it.
package configs

// This file is the schema: one struct per map in the YAML, one field per key.
// defaults.go has the values of what is left out, check.go the rules.

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Config is a whole configuration.
type Config struct {
	// Listeners is where clients connect. At least one.
	Listeners []Listener `mapstructure:"listeners"`
	Admin     Admin      `mapstructure:"admin"`
	Node      Node       `mapstructure:"node"`
	// Authorities is where resources come from. At least one.
	Authorities []Authority `mapstructure:"authorities"`
	// OldStyleNames gives names that are not xdstp an authority and a
	// partition. The first rule that matches a client decides. Without rules
	// only xdstp names are served.
	OldStyleNames []Rule `mapstructure:"old_style_names"`
	// Views are sets and collections that are put together of others. The first
	// that matches what a client asks for decides.
	Views []View `mapstructure:"views"`
	Cache Cache  `mapstructure:"cache"`

	source source
}

// Listener is one address on which clients are served.
type Listener struct {
	// Address is host:port. An empty host means all interfaces, port 0 any
	// free port.
	Address string `mapstructure:"address"`
	// Protocol is what clients speak there.
	Protocol ListenerProtocol `mapstructure:"protocol"`
	// V2 serves the v2 transport of xDS as well.
	V2 bool `mapstructure:"v2"`
	// LongPoll is how long a request over REST, or of a gRPC client that polls,
	// waits for something that the client does not have.
	LongPoll time.Duration `mapstructure:"long_poll"`
	// MaxRequestBytes is the largest request that is read from a client. A
	// larger one ends its stream.
	MaxRequestBytes Bytes `mapstructure:"max_request_bytes"`
	// MaxResponseBytes is the size below which responses are cut into several
	// where the protocol allows it. A resource that is larger is sent alone.
	MaxResponseBytes Bytes `mapstructure:"max_response_bytes"`
	// Redirects is what clients are given of resources that are redirects: what
	// these lead to, or for relays behind this one the redirects themselves.
	Redirects Redirects `mapstructure:"redirects"`
	// WhenUnreachable is which streams end while nothing that they ask for is held,
	// and the control planes of all of it cannot be reached. Of ListenerGRPC only.
	WhenUnreachable WhenUnreachable `mapstructure:"when_unreachable"`
	// Limits are what its clients may cost.
	Limits Limits `mapstructure:"limits"`
	// Keepalive finds clients that went away without a word, whose
	// subscriptions would otherwise live on for as long as TCP lets them.
	Keepalive Keepalive `mapstructure:"keepalive"`
	// Windows and Buffers are of its gRPC connections: of ListenerGRPC only.
	Windows Windows `mapstructure:"windows"`
	Buffers Buffers `mapstructure:"buffers"`
	// TLS is nil for plaintext.
	TLS *ListenerTLS `mapstructure:"tls"`
}

// Limits are what the clients of a listener may cost. A stream that goes over
// one of them ends, except for RequestsPerSecond, StreamsPerSecond and
// ConnectionsPerSecond, above which it is read more slowly.
type Limits struct {
	// Subscriptions is how many names one stream may be subscribed to, of all
	// types together.
	Subscriptions int `mapstructure:"subscriptions"`
	// NameBytes is the length of a name.
	NameBytes Bytes `mapstructure:"name_bytes"`
	// RequestsPerSecond is how fast the requests of one stream are read in the
	// long run.
	RequestsPerSecond int `mapstructure:"requests_per_second"`
	// RequestBurst is how many of its requests are read at once.
	RequestBurst int `mapstructure:"request_burst"`
	// Streams is how many streams may be open on the listener.
	Streams int `mapstructure:"streams"`
	// Scopes is how many authorities, partitions and sets of dynamic parameters one
	// stream may use, taken together.
	Scopes int `mapstructure:"scopes"`
	// ScopesPerConnection is how many all streams of one gRPC connection may use.
	ScopesPerConnection int `mapstructure:"scopes_per_connection"`
	// StreamsPerConnection is how many may be open on one gRPC connection: clients
	// wait for others to end. 0 is no limit.
	StreamsPerConnection int `mapstructure:"streams_per_connection"`
	// StreamsPerSecond is how fast the streams that a client opens on one gRPC
	// connection are read in the long run.
	StreamsPerSecond int `mapstructure:"streams_per_second"`
	// Connections is how many connections the listener may have.
	Connections int `mapstructure:"connections"`
	// ConnectionsPerSecond is how many connections of one address may end within 5
	// seconds of their beginning, in the long run: further ones are read later.
	ConnectionsPerSecond int `mapstructure:"connections_per_second"`
}

// Admin is the operator's listener.
type Admin struct {
	// Address is host:port as in Listener, or empty for no admin listener.
	Address string `mapstructure:"address"`
}

// Node is how the relay names itself to authorities when it asks for xdstp
// names. (For old-style names it speaks for its clients, and uses their Node.)
type Node struct {
	ID       string   `mapstructure:"id"`
	Cluster  string   `mapstructure:"cluster"`
	Locality Locality `mapstructure:"locality"`
	// Metadata is nil if there is none. Its keys keep their case.
	Metadata *structpb.Struct `mapstructure:"metadata"`
}

// Proto returns n as it goes on the wire, a new message at each call. The
// caller adds what the relay says about its own build and features.
func (n Node) Proto() *corev3.Node {
	node := &corev3.Node{Id: n.ID, Cluster: n.Cluster, Metadata: n.Metadata}
	if n.Locality != (Locality{}) {
		node.Locality = &corev3.Locality{
			Region:  n.Locality.Region,
			Zone:    n.Locality.Zone,
			SubZone: n.Locality.SubZone,
		}
	}
	return node
}

// Locality is where the relay runs. Empty parts are left out.
type Locality struct {
	Region  string `mapstructure:"region"`
	Zone    string `mapstructure:"zone"`
	SubZone string `mapstructure:"sub_zone"`
}

// Authority is a named origin of resources. It has either Servers or a
// Directory, never both.
type Authority struct {
	// Name is the authority of xdstp names, as in xdstp://name/..., or
	// *.suffix for every authority that ends in .suffix. An exact name goes
	// before a pattern, and a longer pattern before a shorter one. The empty
	// name, for xdstp:///..., has to be written out as name: "".
	Name string `mapstructure:"name" allow:"empty"`
	// Servers are the control planes, by priority.
	Servers []Server `mapstructure:"servers"`
	// Directory is a folder of resource files, relative to the folder in
	// which the relay is started.
	Directory string `mapstructure:"directory"`
	// Failover says when another server, or the alternative of a name (#alt), takes
	// the place of what cannot be had.
	Failover Failover `mapstructure:"failover"`
	// ContextParameters is what becomes of the context parameters of its names;
	// nil if they are passed as they are.
	ContextParameters *ContextParameters `mapstructure:"context_parameters"`
}

// Failover is how an authority that cannot be reached is replaced. See
// docs/failover.md.
type Failover struct {
	// Policy is when: only for what is missing, or for everything.
	Policy FailoverPolicy `mapstructure:"policy"`
	// Timeout is how long a server may take for its first response before the next
	// one is tried.
	Timeout time.Duration `mapstructure:"timeout"`
	// Grace is how long an authority may be unreachable before PolicyUnreachable
	// has what is held replaced.
	Grace time.Duration `mapstructure:"grace"`
	// Hysteresis is how long a server that comes and goes, or the primary of an
	// alternative, must have been there again before it is gone back to.
	Hysteresis time.Duration `mapstructure:"hysteresis"`
	// NotFound has alternatives used also for what the authority says does not
	// exist.
	NotFound bool `mapstructure:"not_found"`
	// SharedVersions says that the versions of all servers mean the same, so that
	// what one has said may be offered to another.
	SharedVersions bool `mapstructure:"shared_versions"`
}

// Server is one control plane of an authority.
type Server struct {
	// Address is host:port.
	Address string `mapstructure:"address"`
	// Protocol is the form of xDS to speak.
	Protocol Protocol `mapstructure:"protocol"`
	// Aggregated says that all types are asked for on one stream. Otherwise each
	// has its own, from its own service, and between types there is no order. With
	// ProtocolREST it is false, and cannot be anything else.
	Aggregated bool `mapstructure:"aggregated"`
	// Globs says that the server knows glob collections. Otherwise they are fed from
	// the wildcard of their type, as they always are in SotW: with ProtocolSotW and
	// ProtocolREST it is false, and cannot be anything else.
	Globs bool `mapstructure:"globs"`
	// PollInterval is the time from one request to the next, of ProtocolREST only.
	PollInterval time.Duration `mapstructure:"poll_interval"`
	// RequestTimeout is how long a request may be held, of ProtocolREST only.
	RequestTimeout time.Duration `mapstructure:"request_timeout"`
	// MaxRequestBytes is the largest request that is sent to the server. Names that
	// do not fit are refused.
	MaxRequestBytes Bytes `mapstructure:"max_request_bytes"`
	// MaxResponseBytes is the largest response that is read from the server. A
	// larger one ends the stream.
	MaxResponseBytes Bytes `mapstructure:"max_response_bytes"`
	// Keepalive finds a server that went away without a word.
	Keepalive Keepalive `mapstructure:"keepalive"`
	// Probe finds a connection that brings nothing any more, sooner than Keepalive.
	Probe Probe `mapstructure:"probe"`
	// Windows are not of ProtocolREST.
	Windows Windows `mapstructure:"windows"`
	// Backoff is how long to wait before connecting again.
	Backoff Backoff `mapstructure:"backoff"`
	// TLS is nil for plaintext.
	TLS *ServerTLS `mapstructure:"tls"`
}

// delta says that the server may be asked in delta.
func (p Protocol) delta() bool { return p != ProtocolSotW && p != ProtocolREST }

// Keepalive is HTTP/2 pings on a connection where nothing else moves.
type Keepalive struct {
	// Time is how long the connection is quiet before a ping.
	Time time.Duration `mapstructure:"time"`
	// Timeout is how long to wait for the answer before the connection is
	// given up.
	Timeout time.Duration `mapstructure:"timeout"`
}

// Probe is a call on a connection on which nothing comes after a request. It is made
// once in each silence.
type Probe struct {
	// After is how long nothing has come.
	After time.Duration `mapstructure:"after"`
	// Timeout is how long to wait for anything to come before the connection is
	// given up.
	Timeout time.Duration `mapstructure:"timeout"`
}

// Windows are HTTP/2's flow control: how much the other side may send that has not
// been taken yet. They are static, so that gRPC has no pings to find better ones.
type Windows struct {
	Stream     Bytes `mapstructure:"stream"`
	Connection Bytes `mapstructure:"connection"`
}

// Buffers are what gRPC reads and writes at once.
type Buffers struct {
	// Read is held by each connection with TLS, and otherwise while there is
	// something to read.
	Read Bytes `mapstructure:"read"`
	// Write is held while there is something to write.
	Write Bytes `mapstructure:"write"`
}

// Backoff is a wait that doubles from Base to Max and starts over once the
// server has answered.
type Backoff struct {
	Base time.Duration `mapstructure:"base"`
	Max  time.Duration `mapstructure:"max"`
}

// Rule says what old-style names mean to the clients that it matches. The
// expressions are CEL over node, the client's envoy.config.core.v3.Node, and
// type_url, a string. rule.go evaluates them.
type Rule struct {
	// When is a boolean expression, or empty for a rule that always matches.
	When string `mapstructure:"when"`
	// Authority is the authority that the names belong to: one in Authorities,
	// or one that a pattern there covers.
	Authority string `mapstructure:"authority" allow:"empty"`
	// Partition is a string expression: clients for which it gives the same
	// text see the same resources under the same names. Empty means that all
	// of the rule's clients do.
	Partition string `mapstructure:"partition"`
	// NodeFields are paths of fields of the clients' Nodes that go upstream besides
	// what Partition reads, or "*" for the whole Node. See Upstream.
	NodeFields []string `mapstructure:"node_fields"`

	when, partition program
	upstream        NodeFields
	joins           bool // see Joins
}

// Cache is for how long resources are held that no client asks for.
type Cache struct {
	// Linger is how long a subscription outlives the last client's interest; 0 is not
	// at all.
	Linger time.Duration `mapstructure:"linger" allow:"zero"`
	// IdleEntries is how many resources that no client asks for are kept.
	IdleEntries int `mapstructure:"idle_entries"`
	// IdleScopes is how many authorities, partitions and sets of dynamic parameters
	// that no client uses are kept, with a stream upstream for each.
	IdleScopes int `mapstructure:"idle_scopes"`
	// Tombstones are what is remembered of members of glob collections that are
	// gone, for clients that were away meanwhile.
	Tombstones Tombstones `mapstructure:"tombstones"`
}

// Tombstones bound what each glob collection remembers of members that are gone.
// It remembers nothing for longer than it is kept itself: see Cache.Linger.
type Tombstones struct {
	// TTL is for how long.
	TTL time.Duration `mapstructure:"ttl"`
	// Limit is how many of them, the newest.
	Limit int `mapstructure:"limit"`
}
