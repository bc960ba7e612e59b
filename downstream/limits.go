package downstream

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
)

// Limits are what the clients of one listener may cost. Zero means no limit.
type Limits struct {
	// Subscriptions is the number of names that one stream is subscribed to, of
	// all types together.
	Subscriptions int
	// NameBytes is the length of a name.
	NameBytes int
	// RequestsPerSecond is how fast the requests of one stream are read in the
	// long run, and RequestBurst how many are read at once. A client that is
	// faster is not cut off, but read more slowly.
	RequestsPerSecond, RequestBurst int
	// Streams is the number of streams that are open on the listener.
	Streams int
	// Scopes is the number of scopes that one stream uses: see streamScopes.
	// ScopesPerConnection is that of all streams of a gRPC connection together.
	Scopes, ScopesPerConnection int
	// Connections is the number of connections to the listener.
	Connections int
	// ConnectionsPerSecond is how many connections of one address may end soon after they
	// began, in the long run.
	ConnectionsPerSecond int
	// StreamsPerSecond is how fast the streams that a client opens on one gRPC connection
	// are read in the long run.
	StreamsPerSecond int
}

// What one client may cost, whatever the configuration says. A Node stands for
// its whole partition upstream, and so goes out in requests that have a limit of
// their own.
const (
	maxTypes = 64
	// maxTypeURLBytes is several times what any type's name has.
	maxTypeURLBytes = 1 << 10
	maxNodeBytes    = 256 << 10
	// maxNodeValues bounds what a Node takes when it is decoded, which is far more than
	// its length where its values are small. An Envoy with all of its extensions has
	// 5000.
	maxNodeValues = 16 << 10
	maxUntold     = 1 << 20
	// maxParameters are different dynamic parameters: each is a stream upstream.
	maxParameters = 16
	// maxAlternatives are different alternatives of one name, and globs with one: each
	// has copies of what it comes to.
	maxAlternatives = 16
)

// limit is one of the limits, those that are configured and those that are not.
type limit uint8

const (
	limitSubscriptions limit = iota
	limitNameBytes
	limitRequests
	limitStreams
	limitConnections
	limitConnectionsPerSecond
	limitControlFrames
	limitStreamsPerSecond
	limitRequestBytes
	limitTypes
	limitTypeURLBytes
	limitNodeBytes
	limitNodeValues
	limitUntold
	limitParameters
	limitAlternatives
	limitScopes
	limitConnScopes
	numLimits
)

var limitNames = [numLimits]string{
	limitSubscriptions:        "subscriptions",
	limitNameBytes:            "name_bytes",
	limitRequests:             "requests_per_second",
	limitStreams:              "streams",
	limitConnections:          "connections",
	limitConnectionsPerSecond: "connections_per_second",
	limitControlFrames:        "control_frames",
	limitStreamsPerSecond:     "streams_per_second",
	limitRequestBytes:         "max_request_bytes",
	limitTypes:                "types",
	limitTypeURLBytes:         "type_url_bytes",
	limitNodeBytes:            "node_bytes",
	limitNodeValues:           "node_values",
	limitUntold:               "untold",
	limitParameters:           "dynamic_parameters",
	limitAlternatives:         "alternatives",
	limitScopes:               "scopes",
	limitConnScopes:           "scopes_per_connection",
}

// String returns the limit's name in metrics and logs.
func (l limit) String() string { return limitNames[l] }

// place returns where an operator finds the limit: its key below the listener, if
// it has one.
func (l limit) place() string {
	switch l {
	case limitTypes, limitTypeURLBytes, limitNodeBytes, limitNodeValues, limitUntold, limitParameters, limitAlternatives, limitControlFrames:
		return "the fixed limit " + l.String()
	case limitRequestBytes:
		return l.String()
	default:
		return "limits." + l.String()
	}
}

// excess is a client's going over a limit, as the error that ends its stream.
type excess struct {
	limit       limit
	asked, most int
	what        string // a format for asked
}

// Error says what was asked for, and what the limit is.
func (e *excess) Error() string {
	return fmt.Sprintf(e.what, e.asked) + fmt.Sprintf(", but %s is %d", e.limit.place(), e.most)
}

// GRPCStatus makes it gRPC's RESOURCE_EXHAUSTED.
func (e *excess) GRPCStatus() *status.Status { return status.New(codes.ResourceExhausted, e.Error()) }

// over returns the excess, if asked is more than most. A most of 0 is no limit.
func over(l limit, asked, most int, what string) *excess {
	if most == 0 || asked <= most {
		return nil
	}
	return &excess{limit: l, asked: asked, most: most, what: what}
}

// gate holds the clients of one listener to its limits.
type gate struct {
	limits Limits
	// responses is the size below which responses are cut; 0 for the server's.
	responses int
	// passes: redirects go to clients as they are.
	passes bool
	// unreachable: which streams end on which nothing can be served.
	unreachable WhenUnreachable

	open  atomic.Int64   // streams
	told  rate.Sometimes // of those that were turned away
	lines clientLines
}

// turnedAwayEvery is how often the operator is told that streams are turned away.
const turnedAwayEvery = time.Minute

func newGate(o ListenerOptions) *gate {
	return &gate{
		limits: o.Limits, responses: o.MaxResponseBytes, passes: o.PassRedirects,
		unreachable: o.WhenUnreachable,
		told:        rate.Sometimes{Interval: turnedAwayEvery},
	}
}

// admit has a stream kept to the limits.
func (g *gate) admit(st *stream) {
	st.gate = g
	st.limits, st.passes, st.unreachable = g.limits, g.passes, g.unreachable
	st.maxResponse = cmp.Or(g.responses, st.maxResponse)
}

// enter counts a new stream, which leave has to follow, unless it is one too many.
func (g *gate) enter() *excess {
	n := g.open.Add(1)
	e := over(limitStreams, int(n), g.limits.Streams, "%d open streams on this listener")
	if e != nil {
		g.leave()
	}
	return e
}

func (g *gate) leave() { g.open.Add(-1) }

// turnAway notes that a stream could not enter, and returns why.
func (s *Server) turnAway(g *gate, stream grpc.ServerStream, e *excess) error {
	s.stats.limits[e.limit].Add(1)
	g.told.Do(func() { logExcess(s.options.Log.With("client", addressOf(stream.Context())), e) })
	return e
}

// addressOf returns the address of the client whose request has that context.
func addressOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// refuse notes that the client went over a limit, and returns the excess as the
// error that ends its stream.
func (st *stream) refuse(e *excess) error {
	st.server.stats.limits[e.limit].Add(1)
	if log, ok := st.gate.line(eventLimit, st.logger()); ok {
		logExcess(log, e)
	}
	return e
}

// refuseName notes that the client was refused a name, which does not end its stream. The
// caller holds mu.
func (st *stream) refuseName(e *excess) {
	st.server.stats.limits[e.limit].Add(1)
	if !st.namesRefused {
		st.namesRefused = true
		if log, ok := st.gate.line(eventNameRefused, st.logger()); ok {
			log.Warn("client is refused names, for a limit", "limit", e.limit.String(), "max", e.most)
		}
	}
}

// refuseUnasked notes that a name of the client's is not asked for, because a request to the
// control plane has no room for it. The caller holds mu and the topics: logUnasked follows.
func (st *stream) refuseUnasked(why *cache.Error) {
	if !st.namesUnasked {
		st.namesUnasked, st.unaskedWhy = true, why
	}
}

// logUnasked logs the first refusal of refuseUnasked on the stream. The caller holds mu.
func (st *stream) logUnasked() {
	if st.unaskedWhy == nil {
		return
	}
	if log, ok := st.gate.line(eventNameRefused, st.logger()); ok {
		log.Warn("client is refused names, for a limit", "limit", limitRequestBytes.String(), "reason", st.unaskedWhy.Message)
	}
	st.unaskedWhy = nil
}

// refuseRequest is refuse for a request that has no stream yet. client is its
// address.
func (s *Server) refuseRequest(g *gate, client string, e *excess) error {
	s.stats.limits[e.limit].Add(1)
	if log, ok := g.line(eventLimit, s.options.Log.With("client", client)); ok {
		logExcess(log, e)
	}
	return e
}

// farTooLong notes that gRPC has refused a request for its length, which is not
// known here.
func (s *Server) farTooLong(g *gate, log *slog.Logger, err error) {
	if log, ok := g.line(eventLimit, log); ok {
		log.Warn("client went over a limit, and is refused", "limit", limitRequestBytes.String(), "reason", status.Convert(err).Message())
	}
	s.stats.limits[limitRequestBytes].Add(1)
}

func logExcess(log *slog.Logger, e *excess) {
	log.Warn("client went over a limit, and is refused", "limit", e.limit.String(), "max", e.most, "asked", e.asked)
}

// check holds a request against the limits before anything of it is done. The
// caller holds mu.
func check[R request, S typeSession](st *stream, f form[R, S], typeURL string, sess S, req R) *excess {
	for name := range f.names(req) {
		if e := over(limitNameBytes, len(name), st.limits.NameBytes, "a name of %d bytes"); e != nil {
			return e
		}
	}
	if e := checkParameters(sess, f.locators(req)); e != nil {
		return e
	}
	if st.limits.Subscriptions == 0 {
		return nil
	}
	others := 0
	for _, s := range st.sessions {
		if s.TypeURL() != typeURL {
			others += s.Subscribed()
		}
	}
	n := others + f.subscribed(sess, req, st.limits.Subscriptions-others)
	return over(limitSubscriptions, n, st.limits.Subscriptions, "%d names subscribed to on this stream")
}

// checkParameters holds the different dynamic parameters of a type against the
// limit.
func checkParameters(sess typeSession, locators []*discoveryv3.ResourceLocator) *excess {
	if len(locators) == 0 {
		return nil
	}
	n := len(sess.Parameters())
	added := map[string]struct{}{}
	for _, l := range locators {
		params := paramsOf(l)
		if _, there := sess.Parameters()[params]; !there {
			added[params] = struct{}{}
		}
	}
	return over(limitParameters, n+len(added), maxParameters, "%d different dynamic parameters of one type")
}

// checkUntold holds what is kept to be told against the limit, after a request.
// The caller holds mu.
func (st *stream) checkUntold() *excess {
	n := 0
	for _, s := range st.sessions {
		n += s.Pending()
	}
	return over(limitUntold, n, maxUntold, "%d names to be answered, which the client does not read")
}

// deltaNames are all names in a request.
func deltaNames(req *discoveryv3.DeltaDiscoveryRequest) iter.Seq[string] {
	if len(req.GetResourceNamesSubscribe())+len(req.GetResourceNamesUnsubscribe())+len(req.GetInitialResourceVersions())+
		len(req.GetResourceLocatorsSubscribe())+len(req.GetResourceLocatorsUnsubscribe()) == 0 {
		return noNames // an ACK, as most are
	}
	return func(yield func(string) bool) {
		for _, names := range [][]string{
			texts(req.GetResourceNamesSubscribe(), req.GetResourceLocatorsSubscribe()),
			texts(req.GetResourceNamesUnsubscribe(), req.GetResourceLocatorsUnsubscribe()),
		} {
			for _, name := range names {
				if !yield(name) {
					return
				}
			}
		}
		for name := range req.GetInitialResourceVersions() {
			if !yield(name) {
				return
			}
		}
	}
}

func noNames(func(string) bool) {}

// sotwNames are all names in a request.
func sotwNames(req *discoveryv3.DiscoveryRequest) iter.Seq[string] {
	return slices.Values(texts(req.GetResourceNames(), req.GetResourceLocators()))
}

// texts are the names, and the parameters, each set of them in one text.
func texts(names []string, locators []*discoveryv3.ResourceLocator) []string {
	if len(locators) == 0 {
		return names
	}
	all := slices.Clone(names)
	for _, l := range locators {
		all = append(all, l.GetName(), paramsOf(l))
	}
	return all
}

func paramsOf(l *discoveryv3.ResourceLocator) string {
	return cache.Params(l.GetDynamicParameters()).String()
}
