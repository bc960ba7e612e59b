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
	// The control planes, by priority. The relay tries the next when it cannot reach those
	// before, and gives it up when one of those answers again (failover.md). An authority
	// has either `servers` or a `directory`.
	Servers []Server `yaml:"servers" absent:"none, for a directory"`
	// A folder of resource files (`.yaml`, `.json`, `.pb`, `.textpb`). The relay follows changes.
	Directory string `yaml:"directory" absent:"none, for servers"`
	// When the relay replaces an unreachable server by the next one, and an unavailable resource
	// by its alternative (#alt).
	Failover Failover `yaml:"failover"`
	// Keeps members of wildcards, globs and list collections for a while that a control plane does
	// not have any more after it came back, or another server, or a directory: if they are many,
	// or all (safety.md). `off` takes the guard away.
	Guard Guard `yaml:"guard" allow:"off"`
	// What becomes of a resource that clients would reject: safety.md says what the relay looks at.
	// A refused resource is rejected (NACK) with the reason, and clients keep its last good version.
	//
	//	warn     refuse what no client can read: bytes that are no message of their type. Log and
	//	         count what Envoy, or gRPC, would reject
	//	refuse   also refuse what Envoy or gRPC would reject
	//	off      pass everything that has a name
	Check Check `yaml:"check" default:"warn"`
	// What the relay does with the context parameters of xdstp names, which follow the "?". An
	// entry is a key; one that ends in `*` stands for all keys that begin so. Names that are equal
	// without the dropped parameters are one resource. Each client is answered under the name
	// that it asked for, and the members of a glob have the parameters of the client's glob.
	ContextParameters *ContextParameters `yaml:"context_parameters" absent:"names go to the control plane as they are"` // nil then
	// Who gets a change of the authority's resources before others do, and what takes it back.
	// `{}` has all defaults (rollout.md).
	Rollout *Rollout `yaml:"rollout" absent:"all clients get every change at once"` // nil then
	// Whether the relay sums what clients report of the load of the authority's clusters (LRS), and reports
	// that to the authority's active server (load-reports.md). It asks the server only if a client reports.
	//
	//	on    yes, if the server takes load reports
	//	off   no
	LoadReports LoadReports `yaml:"load_reports" default:"on"`
}

// IsPattern reports whether a stands for all authorities with a suffix.
func (a *Authority) IsPattern() bool { return strings.HasPrefix(a.Name, "*.") }

// Failover says when the relay replaces what an authority does not give. See docs/failover.md.
type Failover struct {
	// When the relay uses the next server, or an alternative.
	//
	//	missing       if it lacks a resource that a client asks for (gRFC A71)
	//	unreachable   also if it has all of them, once it could not reach the authority
	//	              for `grace`
	Policy FailoverPolicy `yaml:"policy" default:"missing"`
	// How long a server may take for its first response before the relay tries the next one. It
	// does not wait for a server that refuses. The default is the time after which clients of
	// xDS give up a resource.
	Timeout time.Duration `yaml:"timeout" default:"15s"`
	// How long `policy: unreachable` waits. The default is longer than the restart of a control plane.
	Grace time.Duration `yaml:"grace" default:"30s"`
	// How long a flapping server, or the primary of an alternative, must be up before the relay
	// returns to it. The default is longer than a server runs that crashes at
	// its first request.
	Hysteresis time.Duration `yaml:"hysteresis" default:"5s"`
	// Whether the relay also uses the alternative of a name that does not exist.
	NotFound bool `yaml:"not_found" default:"false"`
	// Whether equal versions of a resource mean equal contents on all servers. Then the relay
	// sends the versions of one server to the next, which sends only what differs. Otherwise the
	// next server sends everything.
	SharedVersions bool `yaml:"shared_versions" default:"false"`
}

// Guard says when the relay keeps what an authority has lost. See docs/safety.md.
type Guard struct {
	// The part of the members of a set that has to go at once, from more than 0 to 1, for the relay
	// to keep them.
	Ratio Ratio `yaml:"ratio" default:"0.5"`
	// At least how many members that has to be. If a set would have none left, the relay keeps them
	// however few they are.
	Least int `yaml:"least" default:"10"`
	// What the relay guards.
	//
	//	reconnect   first answers of a new stream or another server; changes of a directory
	//	always      every answer
	When GuardWhen `yaml:"when" default:"reconnect"`
	// How long the relay keeps them. If the authority still does not have them then, they go.
	Hold time.Duration `yaml:"hold" default:"10m"`

	off bool
}

// Off reports whether there is no guard.
func (g *Guard) Off() bool { return g.off }

// guardOff is what stands in place of the keys if there is no guard.
const guardOff = "off"

// UnmarshalYAML takes the keys, or guardOff.
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
	// (metadata GENERATOR: grpc) auto tries sotw first: in delta Istio forgets the clusters and
	// listeners of earlier requests, and does not send their changes.
	//
	//	auto    delta if the server knows it, otherwise SotW
	//	delta   incremental xDS
	//	sotw    state of the world
	//	rest    state of the world in JSON, by polling
	Protocol Protocol `yaml:"protocol" default:"auto"`
	// Whether all types share one stream (ADS). If clients request a wildcard and also names of
	// the same type, these names have a second stream. So they have with a glob, where the relay
	// subscribes to the wildcard for it (see globs). If not aggregated, each type has a stream (or
	// two) to its own service (CDS, EDS, ...), and the relay cannot get a type without a service.
	// Only `true` keeps the order of changes across types (make before break). With rest it is
	// always false.
	Aggregated bool `yaml:"aggregated" default:"true" with:"auto,delta,sotw"`
	// Whether the server supports glob collections (`xdstp://.../foo/*`). Otherwise the relay
	// subscribes to the wildcard of the type and gives each glob the resources of its directory,
	// as it always does with sotw and rest.
	Globs bool `yaml:"globs" default:"true" with:"auto,delta"`
	// The time from the beginning of one poll to the beginning of the next; the relay shortens
	// it at random by up to a tenth. At least 100ms. If the server holds a request longer than this, the next follows at once.
	PollInterval time.Duration `yaml:"poll_interval" default:"5s" with:"rest"`
	// How long the server may take to answer. A server that holds requests until there is
	// something new needs more than it holds them.
	RequestTimeout time.Duration `yaml:"request_timeout" default:"1m" with:"rest"`
	// The largest request that the relay sends, with the Node. At least 4KiB. gRPC servers
	// accept 4MiB by default, and fail the stream at more. In SotW every request has all names
	// of a type. A name that does not fit gets an error (limits.md).
	MaxRequestBytes Bytes `yaml:"max_request_bytes" default:"4032KiB"`
	// The largest response that the relay reads. A larger one ends the stream. A SotW response
	// has every resource of its type: tens of thousands of clusters are tens of megabytes.
	MaxResponseBytes Bytes `yaml:"max_response_bytes" default:"64MiB"`
	// HTTP/2 pings on a connection on which nothing arrives. By default, gRPC servers close connections that ping more
	// often than every 5m. Not with rest.
	Keepalive Keepalive `yaml:"keepalive" default:"{time: 5m, timeout: 20s}"`
	// Finds a half-open connection (a dead host, a balancer that drops packets) sooner than
	// pings may. If nothing arrives for `after` when a request was sent, the relay calls
	// grpc.health.v1.Health/Check on the connection. Every gRPC server answers that, if only
	// with UNIMPLEMENTED. If nothing arrives for `timeout` then, the relay connects again. It
	// makes one call in each silence, however many streams share the connection. At least 100ms
	// each.
	//
	// With rest, over HTTP/2, a ping takes the place of the call. Over HTTP/1.1 the relay
	// repeats the request on a new connection, if an old one brings no answer for `after` and
	// `timeout`: one without a version, or any if the server has answered within `after` that
	// there is nothing new, and so does not hold requests.
	Probe Probe `yaml:"probe"`
	// The windows of HTTP/2's flow control: how much the server may send before the relay has
	// read it. At least 64KiB each. All
	// streams share one connection, and each round trip brings no more than its window. Large
	// states from far away need more, and take that much memory for each server meanwhile.
	Windows Windows `yaml:"windows" default:"{stream: 1MiB, connection: 4MiB}" with:"auto,delta,sotw"`
	// How long the relay waits before it connects again. The wait doubles from `base` to `max`,
	// varies at random, and starts over once the server has answered.
	Backoff Backoff `yaml:"backoff"`
	// TLS towards the server. {} trusts the system's roots. Files are PEM, and the relay reads
	// them again when they change.
	TLS *ServerTLS `yaml:"tls" absent:"plaintext"` // nil for plaintext
	// A file with a bearer token, which the relay sends to the server as `authorization: Bearer
	// TOKEN`. Only over TLS. When the file changes, new streams and requests have the new token.
	TokenFile string `yaml:"token_file" absent:"none"`
}

// Probe is a call on a connection on which nothing arrives after a request.
type Probe struct {
	// How long the relay waits, after a request, for anything to arrive.
	After time.Duration `yaml:"after" default:"10s"`
	// How long the relay then waits for the answer to its call, before it closes the connection.
	Timeout time.Duration `yaml:"timeout" default:"10s"`
}

// Backoff is a wait that doubles from Base to Max and starts over once the
// server has answered.
type Backoff struct {
	// The first wait.
	Base time.Duration `yaml:"base" default:"1s"`
	// The longest wait. Short, because nothing new reaches any client until the relay is back.
	Max time.Duration `yaml:"max" default:"30s"`
}
