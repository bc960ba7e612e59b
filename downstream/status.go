package downstream

import (
	"iter"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/identity"
)

// ClientStatus is one client's stream as an operator sees it.
type ClientStatus struct {
	Node   *corev3.Node // nil before the first request
	Peer   string
	Form   string // sotw or delta; unary or rest for a request that waits
	Since  time.Time
	Types  []TypeStatus
	Stream uint64
	// Identity is what the client has proven of its identity.
	Identity *identity.Identity
}

// TypeStatus is one type URL on a stream as an operator sees it.
type TypeStatus struct {
	session.Status
	Refused RefusedNames
	// NACK is the last NACK that still stands: the client has not accepted all that it has rejected.
	NACK *LastNACK
}

// LastNACK is a client's rejection of a response.
type LastNACK struct {
	Reason string // in the client's words, without secrets
	At     time.Time
	// Since is when the first of the client's NACKs that still count came.
	Since   time.Time
	Version string // of the response
	// Accepted is the version of the type that the client states it has accepted last. SotW.
	Accepted string
	Names    session.NameSample
}

func nackOf(r *session.Rejection) *LastNACK {
	if r == nil {
		return nil
	}
	return &LastNACK{Reason: r.Reason, At: moment(r.At).time(), Since: moment(r.Since).time(), Version: r.Version, Accepted: r.Accepted, Names: r.Names}
}

func (st *stream) describe() ClientStatus {
	st.mu.Lock()
	defer st.mu.Unlock()
	c := ClientStatus{Node: st.node, Peer: st.peer(), Form: st.form, Since: time.Unix(0, st.began), Stream: st.id, Identity: st.identity}
	for _, s := range st.sessions {
		t := s.Describe()
		status := TypeStatus{Status: t, NACK: nackOf(t.Rejection)}
		if trouble := st.trouble[s.TypeURL()]; trouble != nil {
			status.Refused = trouble.refused
		}
		c.Types = append(c.Types, status)
	}
	return c
}

// Describe iterates over what Clients counts, oldest first. It describes each when its turn comes, so that at most one
// description is in memory.
func (s *Server) Describe() iter.Seq[ClientStatus] {
	return func(yield func(ClientStatus) bool) {
		for st := range s.streamsAfter(0) {
			if !st.isPeer() && !yield(st.describe()) {
				return
			}
		}
	}
}

// Stats returns totals since the start.
func (s *Server) Stats() Stats {
	limits := make(map[string]uint64, numLimits)
	for l := range numLimits {
		limits[l.String()] = s.stats.limits[l].Load()
	}
	rejecting, refused := s.stats.standing.read()
	return Stats{Rejecting: rejecting, WithRefused: refused, ConnFailures: s.stats.connFailures.read(), Requests: s.stats.requests.Load(), Responses: s.stats.responses.Load(), NACKs: s.stats.nacks.Load(), Unreachable: s.stats.unreachable.Load(), Denied: s.stats.denied.Load(), Refusals: s.stats.refusals.read(), Ended: s.stats.ended.Load(), Limits: limits, ClientsRefused: s.stats.clientsRefused.read(), SentAway: s.stats.departures.read(), Admission: s.stats.admission.read()}
}

// Stats are totals since the start.
type Stats struct {
	Requests  uint64 // from clients
	Responses uint64 // to clients
	NACKs     uint64 // from clients
	// Rejecting is how many streams reject something now, by the label of the type. WithRefused is how many have refused
	// names now, by the Refusal's name.
	Rejecting, WithRefused map[string]int
	// Unreachable is how many streams ended because nothing could be served on them.
	Unreachable uint64
	// Denied is how many streams ended because their clients may have nothing of what they
	// subscribed to.
	Denied uint64
	// Refusals is how often names were refused, by the Refusal's name.
	Refusals map[string]uint64
	// Ended is how many streams have ended, plus how many requests that are answered once were answered.
	Ended uint64
	// Limits is how often clients exceeded each limit, by its name.
	Limits map[string]uint64
	// ClientsRefused is how often calls were refused for the client's identity, by the Reason's name.
	ClientsRefused map[string]uint64
	// ConnFailures is how many connections have failed before their first request, by the ConnFailure's name.
	ConnFailures map[string]uint64
	// SentAway is how many connections' clients were sent away, by the Departure's name.
	SentAway  map[string]uint64
	Admission AdmissionStats
}

// Clients returns the number of open streams, plus that of waiting requests that are answered once. It does not count other
// relays of the fleet.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams.n - int(s.peers.Load())
}
