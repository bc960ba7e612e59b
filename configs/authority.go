package configs

// This file is the keys of `authorities`.

import (
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Authority is a named origin of resources. It has either Servers or a Directory.
type Authority struct {
	// The authority of names that begin with xdstp://NAME/, or `*.SUFFIX` for all authorities
	// that end in .SUFFIX. An exact name goes before a pattern, a longer pattern before a shorter
	// one. "" is the authority of names that begin with xdstp:///.
	Name string `yaml:"name" required:"true" allow:"empty"`
	// The control planes, in order of priority. The relay uses the next one while it cannot reach those
	// before it, and returns when one of them answers again (failover.md). An authority has either
	// `servers` or a `directory`.
	Servers []Server `yaml:"servers" absent:"none, for a directory"`
	// A folder of resource files (`.yaml`, `.json`, `.pb`, `.textpb`). The relay reads files again when
	// they change.
	Directory string `yaml:"directory" absent:"none, for servers"`
	// When the relay replaces an unreachable server by the next one, and an unavailable resource
	// by its alternative (#alt).
	Failover Failover `yaml:"failover"`
	// The guard against an authority that suddenly lacks many members of a wildcard, a glob or a list
	// collection, or all of them, as after a restart. The relay keeps these members for a while
	// (safety.md). `off` disables the guard.
	Guard Guard `yaml:"guard" allow:"off"`
	// What the relay does with a resource that clients would reject (safety.md). If it refuses the
	// resource, it sends the control plane a NACK with the reason, and clients keep the last good
	// version.
	//
	//	warn     refuse resources that no client can decode as their type; log and count
	//	         those that Envoy or gRPC would reject
	//	refuse   also refuse resources that Envoy or gRPC would reject
	//	off      accept every resource that has a name
	Check Check `yaml:"check" default:"warn"`
	// What the relay does with the context parameters of xdstp names, which follow the "?". An entry is
	// a key. An entry that ends in `*` stands for all keys with that prefix. Names that are equal
	// without the dropped parameters are one resource. Each client receives it under the name that it
	// requested, and the members of a glob have the parameters of the client's glob.
	ContextParameters *ContextParameters `yaml:"context_parameters" absent:"names go to the control plane unchanged"` // nil then
	// Which clients receive a change of the authority's resources first, and when the relay takes the
	// change back. `{}` has all defaults (rollout.md).
	Rollout *Rollout `yaml:"rollout" absent:"all clients get every change at once"` // nil then
	// Whether the relay adds up the load that clients report for the authority's clusters (LRS), and
	// reports the sums to the authority's active server (load-reports.md). It opens a stream for that
	// only if a client reports load.
	//
	//	on    if the server accepts load reports
	//	off   never
	LoadReports LoadReports `yaml:"load_reports" default:"on"`
}

// IsPattern reports whether a stands for all authorities with a suffix.
func (a *Authority) IsPattern() bool { return strings.HasPrefix(a.Name, "*.") }

// Failover says when the relay replaces an unreachable server or an unavailable resource. See
// docs/failover.md.
type Failover struct {
	// When the relay uses the next server, or an alternative.
	//
	//	missing       if it lacks a resource that a client requests (gRFC A71)
	//	unreachable   also if it lacks none, once the authority has been unreachable for
	//	              `grace`
	Policy FailoverPolicy `yaml:"policy" default:"missing"`
	// How long a server may take for its first response before the relay tries the next one. If a server
	// refuses the connection or the stream, the relay does not wait. The default is the time after which
	// xDS clients give up waiting for a resource.
	Timeout time.Duration `yaml:"timeout" default:"15s"`
	// How long `policy: unreachable` waits. The default is longer than a control plane takes to restart.
	Grace time.Duration `yaml:"grace" default:"30s"`
	// How long a flapping server, or the primary of an alternative, must be up before the relay returns
	// to it. The default is longer than the uptime of a server that crashes at its first request.
	Hysteresis time.Duration `yaml:"hysteresis" default:"5s"`
	// Whether the relay also uses the alternative of a name that does not exist.
	NotFound bool `yaml:"not_found" default:"false"`
	// Whether equal versions of a resource mean equal contents on all servers. Then the relay
	// sends the versions of one server to the next, which sends only what differs. Otherwise the
	// next server sends everything.
	SharedVersions bool `yaml:"shared_versions" default:"false"`
}

// Guard says when the relay keeps members that an authority has lost. See docs/safety.md.
type Guard struct {
	// The part of a set's members, from more than 0 to 1, that has to disappear at once for the relay to
	// keep them.
	Ratio Ratio `yaml:"ratio" default:"0.5"`
	// The least number of members that have to disappear at once. If a set would have no members left,
	// the relay keeps them whatever their number.
	Least int `yaml:"least" default:"10"`
	// What the relay guards.
	//
	//	reconnect   the first responses of a new stream or another server, and changes
	//	            of a directory
	//	always      every response
	When GuardWhen `yaml:"when" default:"reconnect"`
	// How long the relay keeps the members. It removes those that the authority still does not have
	// then.
	Hold time.Duration `yaml:"hold" default:"10m"`

	off bool
}

// Off reports whether there is no guard.
func (g *Guard) Off() bool { return g.off }

// guardOff stands in place of the keys if there is no guard.
const guardOff = "off"

// UnmarshalYAML decodes the keys, or guardOff.
func (g *Guard) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Value == guardOff {
		g.off = true
		return nil
	}
	type keys Guard // without this method
	return n.Decode((*keys)(g))
}

// Server is one control plane of an authority.
type Server struct {
	// Where the server is, as host:port.
	Address string `yaml:"address" required:"true"`
	// The form of xDS that the relay speaks with the server. For Istio's proxyless gRPC clients
	// (metadata GENERATOR: grpc) `auto` tries SotW first: in delta, Istio forgets the clusters and
	// listeners of earlier requests, and does not send their changes.
	//
	//	auto    delta if the server supports it, otherwise SotW
	//	delta   incremental xDS
	//	sotw    state of the world
	//	rest    state of the world in JSON, by polling
	Protocol Protocol `yaml:"protocol" default:"auto"`
	// Whether all types share one stream (ADS). If clients request a wildcard and also names of the same
	// type, these names have a second stream; likewise if the relay subscribes to the wildcard for a
	// glob (see `globs`). With `false`, each type has a stream (or two) to its own service (CDS, EDS,
	// ...), and the relay cannot get types that have no service. Only `true` keeps the order of changes
	// across types (make before break). With rest it is always false.
	Aggregated bool `yaml:"aggregated" default:"true" with:"auto,delta,sotw"`
	// Whether the server supports glob collections (`xdstp://.../foo/*`). Otherwise the relay
	// subscribes to the wildcard of the type and gives each glob the resources of its directory,
	// as it always does with sotw and rest.
	Globs bool `yaml:"globs" default:"true" with:"auto,delta"`
	// Which requests of a stream have the Node. xDS requires it in the first one only, but
	// java-control-plane reads the Node of each request. Envoy sends it with each request, too, unless
	// set_node_on_first_message_only is true.
	//
	//	every_request   all requests
	//	first_request   the first one, which saves bytes if Nodes are large
	Node RequestNode `yaml:"node" default:"every_request" with:"auto,delta,sotw"`
	// Which SotW requests of an aggregated stream the server answers. Some servers (java-control-plane,
	// go-control-plane's snapshots) answer only if they have every name of the request, and send no update until then.
	// For these, the relay requests exactly what clients request at the moment while anything changes
	// (names linger in quiet times only), and after 2s without an answer it finds the names that the server
	// does not have, and leaves them out until the server sends something.
	//
	//	auto    the relay finds out: a server that answers without having every name is as with `all`
	//	all     requests with names that the server does not have, too
	//	known   only requests of which it has every name
	SotWAnswers SotWAnswers `yaml:"sotw_answers" default:"auto" with:"auto,sotw"`
	// The time from the beginning of one poll to the beginning of the next; the relay shortens it at
	// random by up to a tenth. At least 100ms. If the server holds a request longer than that, the next
	// poll follows at once.
	PollInterval time.Duration `yaml:"poll_interval" default:"5s" with:"rest"`
	// How long the server may take to answer. If the server holds requests until there is something new,
	// this must be longer than it holds them.
	RequestTimeout time.Duration `yaml:"request_timeout" default:"1m" with:"rest"`
	// The largest request that the relay sends, including the Node. At least 4KiB. gRPC servers accept
	// 4MiB by default, and end the stream if a request is larger. In SotW every request has all names of
	// a type. Clients receive an error for names that do not fit (limits.md).
	MaxRequestBytes Bytes `yaml:"max_request_bytes" default:"4032KiB"`
	// The largest response that the relay reads. A larger one ends the stream. A SotW response may have
	// all resources of a type: tens of thousands of clusters are tens of megabytes.
	MaxResponseBytes Bytes `yaml:"max_response_bytes" default:"64MiB"`
	// HTTP/2 pings on a connection on which nothing arrives. By default, gRPC servers close connections that ping more
	// often than every 5m. Not with rest.
	Keepalive Keepalive `yaml:"keepalive" default:"{time: 5m, timeout: 20s}"`
	// Detects a half-open connection (a dead host, a load balancer that drops packets) sooner than pings
	// may. If nothing arrives for `after` since a request was sent, the relay calls
	// grpc.health.v1.Health/Check on the connection. Every gRPC server answers that, if only with
	// UNIMPLEMENTED. If nothing arrives within `timeout`, the relay reconnects. It makes one call in
	// each silence, however many streams share the connection. At least 100ms each.
	//
	// With rest, over HTTP/2, the relay sends a ping in place of the call. Over HTTP/1.1, it repeats a
	// request on a new connection if the old one brings no answer for `after` and `timeout` together. It
	// repeats requests without a version only, unless the server has answered within `after` that there
	// is nothing new, and so does not hold requests.
	Probe Probe `yaml:"probe"`
	// The windows of HTTP/2's flow control: how much the server may send before the relay has read it.
	// At least 64KiB each. All streams share one connection, and one round trip brings at most its
	// window. Large states over long distances need larger windows, which cost that much memory for each
	// server while data arrives.
	Windows Windows `yaml:"windows" default:"{stream: 1MiB, connection: 4MiB}" with:"auto,delta,sotw"`
	// How long the relay waits before it reconnects. The wait doubles from `base` to `max`, varies at
	// random, and starts over once the server has answered.
	Backoff Backoff `yaml:"backoff"`
	// TLS towards the server. {} trusts the system's roots. Files are PEM, and the relay reads
	// them again when they change.
	TLS *ServerTLS `yaml:"tls" absent:"plaintext"` // nil for plaintext
	// A file with a bearer token, which the relay sends to the server as `authorization: Bearer TOKEN`.
	// Only over TLS. When the file changes, new streams and requests use the new token.
	TokenFile string `yaml:"token_file" absent:"none"`
}

// Probe says when the relay checks a connection on which nothing arrives after a request.
type Probe struct {
	// How long the relay waits, after a request, for anything to arrive.
	After time.Duration `yaml:"after" default:"10s"`
	// How long the relay then waits for the answer to its call before it closes the connection.
	Timeout time.Duration `yaml:"timeout" default:"10s"`
}

// Backoff is the time before the relay reconnects. It doubles from Base to Max, and starts over once the
// server has answered.
type Backoff struct {
	// The first wait.
	Base time.Duration `yaml:"base" default:"1s"`
	// The longest wait. It is short because no client receives anything new until the relay has
	// reconnected.
	Max time.Duration `yaml:"max" default:"30s"`
}
