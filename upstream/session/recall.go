package session

import (
	"maps"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Recalled resources are those that the relay had before it was started. It lists them in the first
// request of their type, so that a delta control plane sends only what has changed since. Resources that
// it does not send are unchanged. But the relay sends recalled resources to clients only after the control
// plane has answered: its answer counts, and clients may hold something newer.
//
// Recalled members of a set count as listed: the first answer consists of the members that come and
// those that were listed, as for a wildcard together with globs.
//
// Recalled resources of names count as confirmed with the first response of their type. If that is
// large, more of the answer may follow, and they count as confirmed when nothing has come for a while.
//
// A control plane may not answer at all if nothing has changed. So if no response comes within
// nudgeAfter, the relay unsubscribes from one of the names and subscribes again, which a control plane
// must answer. (A control plane should also answer a second subscription without that, but
// go-control-plane does not.) The relay does the same for each glob of which nothing has come, because a
// response without any of its members is no answer for it. A wildcard cannot be requested again on the same
// stream: after pressAfter, the relay opens another one, on which it lists one resource without the version. xDS:
// "Unsubscribing from Resources".

// nudgeAfter is longer than a control plane takes to send something new.
const nudgeAfter = 500 * time.Millisecond

// pressAfter is longer than a control plane that answers takes for all resources of a type.
const pressAfter = 5 * time.Second

// isRecallable reports whether a resource can be listed, and is valid if the control plane does not send
// it again.
func isRecallable(r *cache.Resource) bool { return !r.Alias() && !r.DoNotCache() && r.TTL() == 0 }

func (n *Names) recall(stored func(cache.Key, func(string, *cache.Resource))) {
	if n.params != nil {
		return // it is not known which variants there were
	}
	for _, sub := range n.subs {
		if !sub.wanted || sub.answered || sub.recalled != nil {
			continue
		}
		stored(cache.Key{Scope: n.scope, TypeURL: n.typeURL, Name: sub.name}, func(_ string, r *cache.Resource) {
			if isRecallable(r) {
				sub.recalled, n.recalls = r, true
			}
		})
	}
}

// nudgeLater schedules a nudge, for the case that no answer comes.
func (n *Names) nudgeLater(now time.Time) {
	if n.recalls {
		n.nudges.at = now.Add(nudgeAfter)
	}
}

// nudge makes the control plane answer, if it is time.
func (n *Names) nudge(now time.Time) {
	if !n.nudges.due(now) {
		return
	}
	for _, name := range n.sorted() {
		if sub := n.subs[name]; sub.recalled != nil && sub.sent {
			n.nudges.names = []string{name}
			return
		}
	}
}

// nudgeLater is Names.nudgeLater for globs.
func (s *Sets) nudgeLater(now time.Time) {
	for _, g := range s.globs {
		if len(g.listed) > 0 {
			s.nudges.at = now.Add(nudgeAfter)
			return
		}
	}
	if s.silence() != nil {
		s.nudges.at = now.Add(pressAfter)
	}
}

// silence returns the wildcard if nothing has come for what was recalled of it, nil otherwise.
func (s *Sets) silence() *set {
	if c := s.wildcard; c != nil && c.wanted && c.recalled && !c.answered && !c.pressed {
		return c
	}
	return nil
}

// nudge is Names.nudge for globs.
func (s *Sets) nudge(now time.Time) {
	if !s.nudges.due(now) {
		return
	}
	if c := s.silence(); c != nil {
		if due := c.asked.Add(pressAfter); now.Before(due) {
			s.nudges.at = due
		} else {
			c.silent, c.pressed = true, true
		}
	}
	for _, g := range s.inOrder() {
		if !g.isWildcard() && g.sent && g.members == nil && len(g.listed) > 0 {
			s.noteGone(g.name) // a response may be for the subscription before
			s.nudges.names = append(s.nudges.names, g.name)
		}
	}
}

// confirmLater confirms recalled resources after a response: at once, or later if more may follow.
func (n *Names) confirmLater(now time.Time, size int, u *cache.Update) {
	n.nudges.at = time.Time{}
	switch {
	case !n.recalls:
	case size < largeResponse:
		n.confirm(u)
	default:
		n.confirmAt = now.Add(settleTime)
	}
}

// confirmDue confirms recalled resources, if it is time.
func (n *Names) confirmDue(now time.Time, u *cache.Update) {
	if !n.confirmAt.IsZero() && !now.Before(n.confirmAt) {
		n.confirm(u)
	}
}

// confirm makes recalled resources the answers of their names, unless the control plane has sent others.
func (n *Names) confirm(u *cache.Update) {
	n.recalls, n.confirmAt = false, time.Time{}
	for _, name := range n.sorted() {
		sub := n.subs[name]
		r := sub.recalled
		if sub.recalled = nil; r == nil || sub.answered || !sub.sent {
			continue
		}
		n.answer(sub, cache.Change{Name: name, Resource: r, Origin: n.versionOf()})
		u.Changes = append(u.Changes, sub.answer)
	}
}

func (s *Sets) recall(stored func(cache.Key, func(string, *cache.Resource))) {
	if s.params != nil {
		return // it is not known which variants there were
	}
	for _, c := range s.inOrder() {
		if !c.wanted || c.answered || c.members != nil {
			continue
		}
		stored(cache.Key{Scope: s.scope, TypeURL: s.typeURL, Name: c.name}, func(key string, r *cache.Resource) {
			if isRecallable(r) && r.Name() != "" {
				c.list(key, r)
				c.resumed = true
				c.recalled = true
			}
		})
	}
}

// recalled returns the recalled members of all sets. It is for the first request of a stream:
// set.listed has nothing else before that.
func (s *Sets) recalled() map[string]*cache.Resource {
	all := map[string]*cache.Resource{}
	for _, c := range s.inOrder() {
		maps.Copy(all, c.listed)
	}
	return all
}
