package downstream

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/chain"
)

// Who rejects what a control plane has sent. The sessions of the clients know it. So nothing is counted while clients
// answer: when a client has rejected something, all streams are asked once.

// ScopeType is a type of a scope: what one control plane sends over one stream.
type ScopeType struct {
	Scope   cache.Scope
	TypeURL string
}

// Rejecters are the clients that reject something of a ScopeType. A client that has several streams on one connection
// counts once.
type Rejecters struct {
	Clients   int      // that use the ScopeType
	Rejecting int      // how many of them reject something
	Names     []string // of some of those that reject something
	Reason    string   // the words of the newest rejection
	// Undecided: a client has rejected something, and was sent, or will be sent, something newer, which it may accept.
	Undecided bool
	// Whos are the identities or addresses behind the clients.
	Whos   Whos
	newest moment
	seen   map[clientKey]bool // whether it rejects something
}

// Whos are the identities or addresses of clients, and of those of whom clients that are relays speak.
type Whos struct {
	all    map[whoKey]*who
	others int // that relays have besides those of which they speak
}

// whoKey is an identity or address, or its hash if a relay speaks of it.
type whoKey struct {
	name   string
	hashed bool
}

type who struct {
	clients int
	rejects bool
	cohort  string // of those that reject it, if all have one
}

// reject notes that a client of a cohort rejects something.
func (w *who) reject(cohort string) {
	if w.rejects && w.cohort != cohort {
		cohort = ""
	}
	w.rejects, w.cohort = true, cohort
}

// manyOthers is how many other identities outweigh one that most clients share, as in rollouts.
const manyOthers = 3

// Rejecters returns those that reject something.
func (w *Whos) Rejecters() (r chain.Rejecters) {
	total, most := 0, 0
	for key, of := range w.all {
		if total += of.clients; !of.rejects {
			continue
		}
		most = max(most, of.clients)
		if !key.hashed {
			key.name = chain.HashOf(key.name)
		}
		r.Whos = append(r.Whos, chain.Rejecter{Who: key.name, Cohort: of.cohort})
	}
	slices.SortFunc(r.Whos, func(a, b chain.Rejecter) int { return strings.Compare(a.Who, b.Who) })
	if r.Others = w.others + len(w.all) - len(r.Whos); 2*most > total && r.Others < manyOthers {
		r.Others = 0
	}
	return r
}

// inOwnWords returns a rejection without what a relay says of its clients; nil for nil.
func (st *stream) inOwnWords(n *session.Rejection) *session.Rejection {
	if n == nil || !st.sessionClient.Relay {
		return n
	}
	own := *n
	_, own.Reason = st.rejecters(n.Reason)
	return &own
}

// add counts the stream of a client, with its rejection; nil if there is none.
func (w *Whos) add(st *stream, n *session.Rejection) {
	if n != nil {
		if by, _ := st.rejecters(n.Reason); len(by.Whos) > 0 {
			for _, is := range by.Whos {
				w.of(whoKey{is.Who, true}).reject(is.Cohort)
			}
			w.others += by.Others
			return
		}
	}
	of := w.of(whoKey{name: cmp.Or(st.behind(), st.client())})
	if of.clients++; n != nil {
		of.reject(st.userAgent())
	}
}

func (w *Whos) of(key whoKey) *who {
	if w.all == nil {
		w.all = map[whoKey]*who{}
	}
	of := w.all[key]
	if of == nil {
		of = &who{}
		w.all[key] = of
	}
	return of
}

// userAgent returns the name and version of the client's program, empty if there is no function for that.
func (st *stream) userAgent() string {
	if st.server.options.UserAgent == nil {
		return ""
	}
	return st.server.options.UserAgent(st.node)
}

// clientKey identifies the client of a stream.
type clientKey struct {
	name string
	conn *limitedConn
}

// mostRejecterNames bounds Rejecters.Names.
const mostRejecterNames = 3

// HasRejecters reports whether some client rejects something of a type now.
func (s *Server) HasRejecters(typeURL string) bool { return s.stats.standing.rejects(typeURL) }

// CountRejecters finds the clients of each ScopeType. It locks one stream at a time.
func (s *Server) CountRejecters(of map[ScopeType]*Rejecters) {
	for st := range s.streamsAfter(0) {
		st.countAsRejecter(of)
	}
}

func (st *stream) countAsRejecter(of map[ScopeType]*Rejecters) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return
	}
	var key clientKey
	for _, s := range st.sessions {
		for scope := range st.feeders(s) {
			r := of[ScopeType{scope, s.TypeURL()}]
			if r == nil || st.severalFeed(s) && !s.Uses(st.feeds(scope)) {
				continue
			}
			if key.name == "" {
				key = clientKey{st.client(), connOf(st.grpc.Context())}
			}
			n, undecided := st.rejectionIn(s, scope), st.mayAcceptMore(s)
			if undecided {
				r.Whos.add(st, nil)
			} else {
				r.Whos.add(st, n)
			}
			r.add(key, st.inOwnWords(n), undecided)
		}
	}
}

// add counts a client's stream, with its rejection that stands; nil if there is none.
func (r *Rejecters) add(client clientKey, n *session.Rejection, undecided bool) {
	if r.seen == nil {
		r.seen = map[clientKey]bool{}
	}
	rejects, known := r.seen[client]
	if !known {
		r.Clients++
		r.seen[client] = false
	}
	switch {
	case n == nil:
	case undecided:
		r.Undecided = true
	default:
		if at := moment(n.At); r.Reason == "" || int32(at-r.newest) > 0 { //nolint:gosec // the overflow is intended
			r.newest, r.Reason = at, n.Reason
		}
		if rejects {
			return
		}
		r.seen[client] = true
		r.Rejecting++
		if len(r.Names) < mostRejecterNames {
			r.Names = append(r.Names, client.name)
		}
	}
}

// Views know where the members of views come from.
type Views interface {
	// Sources returns the scopes of the collections of a view.
	Sources(view cache.Scope) []cache.Scope
	// Origin returns the topic of a view's member at its own authority, false if that is not known.
	Origin(member cache.Key) (cache.Key, bool)
}

// feeders iterates over the scopes that may feed what a session's client watches: those that the stream uses, and those
// of its views.
func (st *stream) feeders(s typeSession) iter.Seq[cache.Scope] {
	return func(yield func(cache.Scope) bool) {
		for scope := range st.scopes.all() {
			if !yield(scope) {
				return
			}
		}
		var given []cache.Scope
		for view := range s.Views() {
			for _, scope := range st.viewSources(view.Scope) {
				if st.scopes.get(scope) > 0 || slices.Contains(given, scope) {
					continue
				}
				if given = append(given, scope); !yield(scope) {
					return
				}
			}
		}
	}
}

// severalFeed reports whether more than one scope may feed what a session's client watches.
func (st *stream) severalFeed(s typeSession) bool {
	for range s.Views() {
		return true
	}
	return st.scopes.len() > 1
}

// viewSources returns the scopes that feed a view.
func (st *stream) viewSources(view cache.Scope) (sources []cache.Scope) {
	if v := st.server.options.Views; v != nil {
		for _, scope := range v.Sources(view) {
			scope.Params = view.Params
			sources = append(sources, scope)
		}
	}
	return sources
}

// feeds returns a function that reports whether a scope feeds a topic, or a member of a view.
func (st *stream) feeds(scope cache.Scope) func(cache.Key) bool {
	return func(k cache.Key) bool {
		if view := k.Scope; view.IsView() {
			if k.IsSet() {
				return slices.Contains(st.viewSources(view), scope)
			}
			v := st.server.options.Views
			if v == nil {
				return false
			}
			var known bool
			if k, known = v.Origin(k); !known {
				return false
			}
			k.Scope.Params = view.Params
		}
		for of := range scopesOf(k) {
			if of == scope {
				return true
			}
		}
		return false
	}
}

// rejectionIn returns the client's rejection that stands of something that a scope feeds; nil if there is none. If the
// scope has a rollout, the rollout decides instead.
func (st *stream) rejectionIn(s typeSession, scope cache.Scope) *session.Rejection {
	if slices.ContainsFunc(st.trials.each(), func(t *streamTrial) bool { return t.scope == scope }) {
		return nil
	}
	if !st.severalFeed(s) {
		return s.Rejects(nil)
	}
	if some, ok := st.server.options.Rollouts.(RolledOutScopes); ok && some.RollsOut(scope) {
		return nil // the stream has no part in it if a view is all that uses the scope
	}
	return s.Rejects(st.feeds(scope))
}

// mayAcceptMore reports that the client has not answered everything, or will be sent more.
func (st *stream) mayAcceptMore(s typeSession) bool {
	n, _ := s.InFlight()
	return n > 0 || s.Adding() || s.Removing() || st.inbox.hasNews()
}

// passOn reports a rejection, for each scope that may have what was rejected. A client that polls is gone when
// CountRejecters looks for it.
func (st *stream) passOn(s typeSession, n *session.NACK) {
	pass := st.server.options.Rejected
	if pass == nil {
		return
	}
	_, polls := st.grpc.(noStream)
	for scope := range st.feeders(s) {
		if st.rejectionIn(s, scope) == nil {
			continue
		}
		var polled *Rejecters
		if polls {
			polled = &Rejecters{Clients: 1, Rejecting: 1, Names: []string{st.client()}, Reason: n.Reason}
			polled.Whos.add(st, &session.Rejection{Reason: n.Reason})
		}
		pass(ScopeType{scope, n.TypeURL}, polled)
	}
}
