package session

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// A delta control plane may send its first answer for a wildcard or a glob in several
// responses, and does not mark the last one. The relay sends its clients each response at
// once. But a member that has not come yet may follow. So a client that holds it from
// before must not get its removal: the set is incomplete in the cache until it is known that nothing
// follows. Two things show that:
//
//   - No new member has come for 2 s, or for twice the longest pause seen between two parts of a first answer.
//   - The control plane has answered something that was requested later on the stream, and after that no new
//     member has come for a moment. Most control planes answer one request after the other. Others answer each
//     type by itself, so the moment is twice as long as the parts took to come. This does not
//     count after a large response, which was perhaps cut, nor for a control plane that has paused for longer
//     between two parts (see moment in habits.go).
//
// Clients that hold nothing do not wait. A change of a member that came before is no part of a first
// answer, and does not prolong the wait.
//
// A relay says when its first answer is complete (wire.DeltaComplete), so neither is guessed of it.
//
// Do not confuse this with settling (goesOn): the relay holds back from all clients, for up to a second,
// a large response that the control plane has probably cut.

// grace records a response, which may have a part of a set's first answer.
func (s *Sets) grace(now time.Time, p *part, v *accepted, sotw bool) {
	c := p.set
	first := p.begins || c.guessed && p.certain
	switch {
	case sotw && !p.full:
	case p.full:
		s.endGrace(c) // in delta, the control plane has reported that the glob is empty
	case first && v.completes(c.name):
		// It is whole.
	case first:
		c.incomplete = true
		fallthrough
	case p.grown:
		if c.latest.IsZero() {
			c.latest = now.Add(longestGrace)
		}
		if !first && !c.lastPart.IsZero() {
			s.habits.paused(now.Sub(c.lastPart))
		}
		c.lastPart, c.large = now, c.large || v.size >= largeResponse
		s.awaitMore(now, c)
	}
}

// awaitMore schedules the end of the wait for another part of an answer.
func (s *Sets) awaitMore(now time.Time, c *set) {
	wait := s.habits.grace()
	if c.overtaken && !c.large {
		wait = s.habits.moment(c.lastPart.Sub(c.asked))
	}
	at := now.Add(wait)
	if c.latest.Before(at) {
		at = c.latest
	}
	s.graces.Set(c, at)
}

// awaitRest waits for the rest of an incomplete answer that began on an earlier stream. There may be
// no rest.
func (s *Sets) awaitRest(c *set, now time.Time) {
	if c.incomplete && c.latest.IsZero() {
		s.graces.Set(c, now.Add(restGrace))
	}
}

// overtake notes that the control plane has answered what was requested at a time, of another type. In one
// moment, types are requested in their order. overtake reports whether an answer is complete earlier now.
func (s *Sets) overtake(now, asked time.Time, typeURL string) (sooner bool) {
	for c := range s.each {
		if !c.incomplete || c.overtaken || !c.sent || !c.asked.Before(asked) && !(c.asked.Equal(asked) && s.typeURL < typeURL) {
			continue
		}
		c.overtaken = true
		switch at, waits := s.graces.At(c); {
		case !waits:
		case c.latest.IsZero(): // of the rest, nothing has come
			s.graces.Set(c, earlier(at, now.Add(s.habits.grace())))
		default:
			s.awaitMore(now, c)
		}
		sooner = true
	}
	return sooner
}

// endGraces completes the first answers whose grace has ended. If no response has come on this
// stream, a control plane that is mute gets more time.
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
		s.completeFirst(c, u)
	}
}

// completeFirst completes the first answer for a set.
func (s *Sets) completeFirst(c *set, u *cache.Update) {
	lost := s.loseTold(c)
	s.endGrace(c)
	s.send(cache.SetUpdate{Name: c.name, Changes: lost, Extent: cache.Ends, Origin: c.origin, Answer: cache.FirstAnswer}, u)
}

// completeMarked completes the first answers for sets of which a relay says that nothing follows.
func (s *Sets) completeMarked(names []string, u *cache.Update) {
	for _, name := range names {
		c := s.find(name)
		if c == nil || !c.sent || c.members == nil {
			continue
		}
		c.first = firstAnswer{}
		if !c.answered {
			s.settle(c, nil, u)
		}
		if c.incomplete {
			s.completeFirst(c, u)
		}
	}
}

// goesOn reports whether more of a set's first answer may follow, and schedules the end of the wait
// for it.
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

// ask is core.ask, and records when sets were requested.
func (s *Sets) ask(subs []*subscription, first bool, now time.Time) {
	s.core.ask(subs, first, now)
	for _, sub := range subs {
		c := s.find(sub.name)
		s.hadWildcard = s.hadWildcard || c.isWildcard()
		c.asked, c.overtaken = now, false
		s.awaitRest(c, now)
	}
}
