package downstream

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// The scopes that a client uses. A scope is an authority, a partition of one, or either with dynamic parameters. Each
// costs one stream upstream; two if clients want both names and a set of one type; one for each type if the server has
// no aggregated service (types have limits of their own: enterType); and all that for each server that is tried.
// Clients can make up any number of scopes: as authorities under a pattern, as Nodes if the partition is node.id, as
// parameters. So a limit bounds the scopes that a stream uses at once, and further limits bound those of all streams of
// one connection together, and of one identity.

// Admits implements session.Host.
func (s *streamScopes) Admits(k cache.Key) error {
	if e := s.alternatives.over(k); e != nil {
		return e.refusal()
	}
	return nil
}

// Enter implements session.Host.
func (s *streamScopes) Enter(k cache.Key) error {
	if err := s.stream.noRoomError(); err != nil {
		return err
	}
	var entered []cache.Scope // before the failed one
	for scope := range scopesOf(k) {
		if e := s.enterOne(scope, true); e != nil {
			for _, before := range entered {
				s.leaveOne(before)
			}
			if k.Scope.OldStyle && k.Scope.Params == "" {
				s.excess = e
			}
			return e.refusal()
		}
		if k.Scope.Derived != "" {
			entered = append(entered, scope)
		}
	}
	s.alternatives.count(k, 1)
	if k.Scope.IsView() {
		s.stream.withdrawTrials()
	}
	s.stream.wants(k)
	return nil
}

// Leave implements session.Host.
func (s *streamScopes) Leave(k cache.Key) {
	s.stream.wantsNoMore(k)
	for scope := range scopesOf(k) {
		s.leaveOne(scope)
	}
	s.alternatives.count(k, -1)
}

// Move implements session.Host. No limit applies: the client has done nothing, and other streams of its connection and
// its identity may move later.
func (s *streamScopes) Move(from, to cache.Key) {
	for scope := range scopesOf(to) {
		_ = s.enterOne(scope, false)
	}
	s.alternatives.count(to, 1)
	s.stream.wants(to)
	s.Leave(from)
}

// enterOne counts a use of a scope. If limited, the limits may refuse it; otherwise the error is nil.
func (s *streamScopes) enterOne(scope cache.Scope, limited bool) *excess {
	if s.get(scope) == 0 && !limited {
		s.enterUnlimited(scope)
	} else if s.get(scope) == 0 {
		if e := over(limitScopes, s.len()+1, s.stream.limits.Scopes, "%d authorities, partitions and sets of dynamic parameters on this stream"); e != nil {
			return e
		}
		if e := s.enterConn(scope); e != nil {
			return e
		}
		if e := s.enterIdentity(scope); e != nil {
			s.leaveConn(scope)
			return e
		}
	}
	if s.add(scope, 1) > 1 {
		return nil
	}
	if user, ok := s.stream.names.(ScopeUser); ok {
		user.Enter(scope)
	}
	s.joinTrial(scope)
	return nil
}

func (s *streamScopes) leaveOne(scope cache.Scope) {
	if s.add(scope, -1) > 0 {
		return
	}
	s.leaveTrial(scope)
	s.leaveConn(scope)
	if u := s.stream.uses; u != nil {
		u.leave(scope)
	}
	if user, ok := s.stream.names.(ScopeUser); ok {
		user.Leave(scope)
	}
}

// enterUnlimited counts a scope that is new to the stream, without applying the limits.
func (s *streamScopes) enterUnlimited(scope cache.Scope) {
	if s.stream.limits.ScopesPerConnection > 0 {
		_ = s.connection().enter(scope, 0)
	}
	if u := s.stream.uses; u != nil {
		_ = u.enter(scope, 0)
	}
}

// enterConn counts, for the connection, a scope that is new to the stream.
func (s *streamScopes) enterConn(scope cache.Scope) *excess {
	most := s.stream.limits.ScopesPerConnection
	if most == 0 {
		return nil
	}
	return s.connection().enter(scope, most)
}

func (s *streamScopes) connection() *connScopes {
	if s.conn == nil {
		s.conn = s.stream.server.conns.join(s.stream.grpc.Context())
	}
	return s.conn
}

func (s *streamScopes) leaveConn(scope cache.Scope) {
	if s.conn != nil {
		s.conn.leave(scope)
	}
}

// close is called when the stream has left all scopes.
func (s *streamScopes) close() {
	if s.conn != nil {
		s.stream.server.conns.leave(s.conn)
		s.conn = nil
	}
}

// enterIdentity counts, for the client's identity, a scope that is new to the stream.
func (s *streamScopes) enterIdentity(scope cache.Scope) *excess {
	u := s.stream.uses
	if u == nil {
		return nil
	}
	most := s.stream.gate.perIdentity.Scopes
	if e := u.enter(scope, most); e != nil {
		return e
	}
	server := s.stream.server
	if server.topics.HasScope(scope) {
		return nil
	}
	e := server.newScopes.take(u.key, most, time.Now())
	if e != nil {
		u.leave(scope)
	}
	return e
}
