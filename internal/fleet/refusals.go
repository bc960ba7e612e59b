package fleet

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// A member may refuse a scope: its configuration may be another one, or it does not reach the control plane. The scope
// comes from elsewhere then, and the member is asked again after a while, which doubles with each refusal.

const (
	// avoidsFor is how long a scope does not come from a member that has refused it, and avoidsAtMost how long at most if
	// it goes on to refuse it for the same reason.
	avoidsFor, avoidsAtMost = 10 * time.Second, 5 * time.Minute
	// refusedTogether is how long a line about refusals waits for further scopes.
	refusedTogether = 500 * time.Millisecond
)

// avoidance is the refusal of a scope by a member.
type avoidance struct {
	reason string
	lasts  time.Duration
	until  time.Time
}

// isOver reports whether it does not matter any more that the member has refused: it has served for as long since.
func (a avoidance) isOver(now time.Time) bool { return !now.Before(a.until.Add(a.lasts)) }

// refusal is what one log line is about.
type refusal struct{ address, reason string }

// Refused notes that a member does not give a scope: it comes from others for a while.
func (f *Fleet) Refused(scope cache.Scope, by *Peer, reason string) {
	now := time.Now()
	f.mu.Lock()
	s := f.stateOf(scope)
	if s.avoids == nil {
		s.avoids = map[string]avoidance{}
	}
	a := s.avoids[by.Address]
	switch {
	case now.Before(a.until):
		f.mu.Unlock()
		return // it is known: a stream that was opened before has ended
	case a.reason == reason && !a.isOver(now):
		a.lasts = min(2*a.lasts, avoidsAtMost)
	default:
		a = avoidance{reason: reason, lasts: avoidsFor}
	}
	a.until = now.Add(a.lasts)
	s.avoids[by.Address] = a
	time.AfterFunc(a.lasts, func() { f.change(scope) })
	time.AfterFunc(2*a.lasts, func() { f.expire(scope) })
	f.noteRefusal(refusal{by.Address, reason})
	f.mu.Unlock()
	f.change(scope)
}

// noteRefusal has a line say that a member has refused a scope, and how many others. The caller holds mu.
func (f *Fleet) noteRefusal(r refusal) {
	if f.refused == nil {
		f.refused = map[refusal]int{}
	}
	if f.refused[r]++; f.refused[r] > 1 {
		return // the line is about to come
	}
	time.AfterFunc(refusedTogether, func() {
		f.mu.Lock()
		scopes := f.refused[r]
		delete(f.refused, r)
		f.mu.Unlock()
		f.options.Log.Warn("a member of the fleet does not serve scopes, which come from elsewhere for a while",
			"peer", r.address, "scopes", scopes, "reason", r.reason)
	})
}

// Serves reports whether a scope that comes from a member can come from there further on.
func (f *Fleet) Serves(scope cache.Scope, p *Peer) bool {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.peers[p.Address] == p && p.up && !f.scopes[scope].avoidsMember(p, now)
}

// avoidsMember reports whether a scope does not come from a member for a while. The receiver may be nil.
func (s *scopeState) avoidsMember(p *Peer, now time.Time) bool {
	return s != nil && now.Before(s.avoids[p.Address].until)
}
