package upstream

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// A delta control plane may send its first answer for a wildcard or a glob in several
// responses, and does not say which is the last. The relay sends its clients what has come at
// once. But a member that has not come yet may follow, so that a client which holds it from
// before must not be sent its removal: the set is incomplete in the cache until no member has
// come for graceTime.
//
// It is different from settling, where a large response is held back from all clients, as it
// was likely cut.

const (
	// graceTime is as in package failover.
	graceTime = 2 * time.Second
	// longestGrace bounds how long a first answer can take, as of a control plane that
	// sends changes all the time.
	longestGrace = 15 * time.Second
)

// grace takes note of a response, which may have a part of a set's first answer.
func (s *subscriptions) grace(now time.Time, p *part, v *verdicts, sotw bool) {
	c := p.set
	first := p.begins || c.guessed && p.certain
	switch {
	case sotw && !p.full:
	case p.full:
		s.endGrace(c) // in delta, the control plane says that there is nothing
	case first:
		c.incomplete = true
		fallthrough
	case c.incomplete && len(p.changes) > 0 && !v.onlyBeats():
		if c.latest.IsZero() {
			c.latest = now.Add(longestGrace)
		}
		at := now.Add(graceTime)
		if c.latest.Before(at) {
			at = c.latest
		}
		s.graces.Set(c, at)
	}
}

// awaitRest waits for the rest of an incomplete answer on another stream, which may have
// nothing more to say.
func (s *subscriptions) awaitRest(c *set, now time.Time) {
	if c.incomplete && c.latest.IsZero() {
		s.graces.Set(c, now.Add(longestGrace))
	}
}

// endGraces tells which first answers have come as a whole. Without a response the silence of
// the control plane says that only if it answers something else.
func (s *subscriptions) endGraces(now time.Time, what silence, u *cache.Update) {
	for _, c := range s.graces.Due(now) {
		if at, settling := s.settling.At(c); settling {
			s.graces.Set(c, at)
			continue
		}
		if c.latest.IsZero() && what == mute {
			s.graces.Set(c, now.Add(longestGrace))
			continue
		}
		s.endGrace(c)
		s.tellSet(cache.SetUpdate{Name: c.sub.name, Complete: true, Origin: c.origin}, u)
	}
}

func (s *subscriptions) endGrace(c *set) {
	s.graces.End(c)
	c.incomplete, c.latest = false, time.Time{}
}
