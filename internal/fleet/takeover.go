package fleet

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// A relay that begins to use a scope, and owns it, first gets the scope's present state from a member that has it: the
// former owner, or a peer that now gets the scope from this relay. It then opens its stream to the authority's server
// with the versions of that state, so the server sends only what differs. All of it takes a moment, and has a bound.

// takeover is the way of a scope's state to a new owner.
type takeover struct {
	giver *Peer
	tried map[*Peer]bool
	until time.Time   // when it ends at the latest
	end   *time.Timer // ends it, when nothing comes any more
}

const (
	// givesWithin is how long a member may take until the first response comes, and then until the next one, or until the
	// relay has got what is in it.
	givesWithin = 500 * time.Millisecond
	// givenAfter is how long nothing must have come before the state counts as complete. If it was not, the server sends
	// the rest.
	givenAfter = 250 * time.Millisecond
	// givesFor bounds a takeover: meanwhile, perhaps no relay has a stream to the server.
	givesFor = 2 * time.Second
	// mostGivers is how many members are tried: those that get the scope from here, and the next by their scores. The
	// former owner is the first of these, unless several members have come at once.
	mostGivers = 3
)

// TakeOver has the state of a scope that the relay owns and has nothing of come from a member, if there is one that may
// have it. The caller opens the scope's source afterwards.
func (f *Fleet) TakeOver(scope cache.Scope) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.peers) == 0 || f.owner(scope, now) != nil {
		return
	}
	s := f.stateOf(scope)
	if s.takeover == nil {
		s.takeover = &takeover{tried: map[*Peer]bool{}, until: now.Add(givesFor)}
		f.nextGiver(scope, s, now)
	}
	f.forget(scope, now)
}

// nextGiver chooses the next member to try, and ends the takeover if there is none. The caller holds mu.
func (f *Fleet) nextGiver(scope cache.Scope, s *scopeState, now time.Time) {
	t := s.takeover
	if t.end != nil {
		t.end.Stop()
	}
	var best *Peer
	var highest uint64
	served, hash := false, scopeHash(scope)
	for _, p := range f.peers {
		if p.isSelf || t.tried[p] || !p.gives(now) {
			continue
		}
		value, gets := score(p.hash, hash), s.served[p.Address] > 0
		if best == nil || gets && !served || gets == served && value > highest {
			best, highest, served = p, value, gets
		}
	}
	if best == nil || len(t.tried) == mostGivers || !now.Before(t.until) {
		s.takeover = nil
		return
	}
	t.giver = best
	t.tried[best] = true
	t.end = time.AfterFunc(min(givesWithin, t.until.Sub(now)), func() { f.endTakeover(scope, t) })
}

// Giving notes that a response with some of the state of a scope has come from a member. Given follows once the relay has
// all of a part, which may be in several responses.
func (f *Fleet) Giving(scope cache.Scope, by *Peer) { f.extend(scope, by, givesWithin) }

// Given notes that the relay has got some of the state of a scope from a member.
func (f *Fleet) Given(scope cache.Scope, by *Peer) { f.extend(scope, by, givenAfter) }

// extend has the takeover of a scope go on for a time.
func (f *Fleet) extend(scope cache.Scope, by *Peer, d time.Duration) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.scopes[scope]; s != nil && s.takeover != nil && s.takeover.giver == by {
		s.takeover.end.Reset(max(0, min(d, s.takeover.until.Sub(now))))
	}
}

// NotGiven notes that the state of a scope does not come from a member: it may come from another one.
func (f *Fleet) NotGiven(scope cache.Scope, by *Peer) {
	now := time.Now()
	f.mu.Lock()
	s := f.scopes[scope]
	if s == nil || s.takeover == nil || s.takeover.giver != by {
		f.mu.Unlock()
		return
	}
	f.nextGiver(scope, s, now)
	f.forget(scope, now)
	f.mu.Unlock()
	f.change(scope)
}

func (f *Fleet) endTakeover(scope cache.Scope, t *takeover) {
	f.mu.Lock()
	s := f.scopes[scope]
	ends := s != nil && s.takeover == t
	if ends {
		s.takeover = nil
		f.forget(scope, time.Now())
	}
	f.mu.Unlock()
	if ends {
		f.change(scope)
	}
}
