package session

import (
	"maps"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// What the relay had before it was started is listed in the first request of its type, so that
// a delta control plane sends only what has changed since. What it then does not send is as it
// was. But nothing that was recalled is told before the control plane has answered: what it
// says counts, and clients may hold something newer.
//
// Of a set, what was recalled counts as listed: the first answer is of what comes and of what
// was listed, as for a wildcard together with globs.
//
// Of names, the rest counts as confirmed with the first response of their type; or, if that is
// large, when nothing has come for a while, as more of the answer may follow.
//
// A control plane of which nothing has changed may not answer at all. So if there is no response in
// nudgeAfter, one of the names is given up and subscribed to again, which a control plane has to answer.
// (That a name which is subscribed to is to be sent again, too, go-control-plane does not know.) So is
// each glob of which nothing has come: a response without any of its members is no answer to it.
// xDS: "Unsubscribing from Resources".

// nudgeAfter is longer than a control plane takes that has something to say.
const nudgeAfter = 500 * time.Millisecond

// isRecallable reports whether a resource can be listed, and counts if it is not sent again.
func isRecallable(r *cache.Resource) bool { return !r.Alias() && !r.DoNotCache() && r.TTL() == 0 }

func (n *Names) recall(had func(cache.Key, func(string, *cache.Resource))) {
	if n.params != nil {
		return // which variants there were is not known
	}
	for _, sub := range n.subs {
		if !sub.wanted || sub.answered || sub.recalled != nil {
			continue
		}
		had(cache.Key{Scope: n.scope, TypeURL: n.typeURL, Name: sub.name}, func(_ string, r *cache.Resource) {
			if isRecallable(r) {
				sub.recalled, n.recalls = r, true
			}
		})
	}
}

// nudgeLater has the control plane asked for an answer if none comes.
func (n *Names) nudgeLater(now time.Time) {
	if n.recalls {
		n.nudges.at = now.Add(nudgeAfter)
	}
}

// nudge asks the control plane for an answer, if it is time.
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

// nudgeLater is that of names.
func (s *Sets) nudgeLater(now time.Time) {
	for _, g := range s.globs {
		if len(g.listed) > 0 {
			s.nudges.at = now.Add(nudgeAfter)
			return
		}
	}
}

// nudge is that of names.
func (s *Sets) nudge(now time.Time) {
	if !s.nudges.due(now) {
		return
	}
	for _, g := range s.inOrder() {
		if !g.isWildcard() && g.sent && g.members == nil && len(g.listed) > 0 {
			s.noteGone(g.name) // what comes may be of before
			s.nudges.names = append(s.nudges.names, g.name)
		}
	}
}

// confirmLater notes that there was a response, after which what was recalled is confirmed.
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

// confirmDue confirms what was recalled, if it is time.
func (n *Names) confirmDue(now time.Time, u *cache.Update) {
	if !n.confirmAt.IsZero() && !now.Before(n.confirmAt) {
		n.confirm(u)
	}
}

// confirm makes what was recalled, and was not sent, the answer of its name.
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

func (s *Sets) recall(had func(cache.Key, func(string, *cache.Resource))) {
	if s.params != nil {
		return // which variants there were is not known
	}
	for _, c := range s.inOrder() {
		if !c.wanted || c.answered || c.members != nil {
			continue
		}
		had(cache.Key{Scope: s.scope, TypeURL: s.typeURL, Name: c.name}, func(key string, r *cache.Resource) {
			if isRecallable(r) && r.Name() != "" {
				c.list(key, r)
				c.resumed = true
				c.recalled = true
			}
		})
	}
}

// recalled returns what was recalled of all sets. It is for the first request of a stream,
// before which nothing else is listed.
func (s *Sets) recalled() map[string]*cache.Resource {
	all := map[string]*cache.Resource{}
	for _, c := range s.inOrder() {
		maps.Copy(all, c.listed)
	}
	return all
}
