package session

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// A delta control plane may send its first answer for a wildcard or a glob in several
// responses, and does not say which is the last. The relay sends its clients what has come at
// once. But a member that has not come yet may follow, so that a client which holds it from
// before must not be sent its removal: the set is incomplete in the cache until no member has
// come for a while. How long that is depends on what is known of the control plane: of one
// that nothing is known of, it is unknownGrace, and once a first answer of it was complete
// graceTime, or twice the longest time between two parts that was seen. Clients that hold
// nothing wait for none of this.
//
// What changes a member that came before is no part of a first answer, and is not waited for.
//
// It is different from settling, where a large response is held back from all clients, as it
// was likely cut.

// grace takes note of a response, which may have a part of a set's first answer.
func (s *Sets) grace(now time.Time, p *part, sotw bool) {
	c := p.set
	first := p.begins || c.guessed && p.certain
	switch {
	case sotw && !p.full:
	case p.full:
		s.endGrace(c) // in delta, the control plane says that there is nothing
	case first:
		c.incomplete = true
		fallthrough
	case p.grown:
		if c.latest.IsZero() {
			c.latest = now.Add(longestGrace)
		}
		if !first && !c.part.IsZero() {
			s.habits.paused(now.Sub(c.part))
		}
		c.part = now
		at := now.Add(s.habits.grace())
		if c.latest.Before(at) {
			at = c.latest
		}
		s.graces.Set(c, at)
	}
}

// awaitRest waits for the rest of an incomplete answer on another stream, which may have
// nothing more to say.
func (s *Sets) awaitRest(c *set, now time.Time) {
	if c.incomplete && c.latest.IsZero() {
		s.graces.Set(c, now.Add(restGrace))
	}
}

// endGraces applies which first answers have come as a whole. Without a response the silence of
// the control plane says that only if it answers something else.
func (s *Sets) endGraces(now time.Time, what Silence, u *cache.Update) {
	for _, c := range s.graces.Due(now) {
		if at, settling := s.settling.At(c); settling {
			s.graces.Set(c, at)
			continue
		}
		if c.latest.IsZero() && what == Mute {
			s.graces.Set(c, now.Add(restGrace))
			continue
		}
		if !c.part.IsZero() {
			s.habits.completed()
		}
		s.endGrace(c)
		s.send(cache.SetUpdate{Name: c.name, Complete: true, Origin: c.origin, Answer: cache.FirstAnswer}, u)
	}
}

// goesOn says whether more of a set's first answer may be to come, and has that waited for.
func (s *Sets) goesOn(now time.Time, p *part, v *accepted) bool {
	c, large := p.set, v.size >= largeResponse
	if _, waiting := s.settling.At(c); waiting {
		c.first.goesOn(now, v.size, false, s.habits)
		if large {
			s.settling.Set(c, now.Add(settleTime))
		}
		return large || !p.certain
	}
	wait := s.habits.wait(v.size, v.largest, now.Sub(c.asked))
	if large {
		c.first = firstAnswer{size: v.size, until: now.Add(settleTime)}
	}
	if !p.certain {
		wait = settleTime
	}
	if wait > 0 {
		s.settling.Set(c, now.Add(wait))
	}
	return wait > 0
}

// ask is that of core.
func (s *Sets) ask(subs []*subscription, first bool, now time.Time) {
	s.core.ask(subs, first, now)
	for _, sub := range subs {
		c := s.find(sub.name)
		s.hadWildcard = s.hadWildcard || c.isWildcard()
		c.asked = now
		s.awaitRest(c, now)
	}
}
