package session

import (
	"iter"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
)

// Which of the client's rejections still stand. The client rejects a response, and may then accept newer versions of what
// was in it. A rejection stands until the client has been sent each of its names again and has acknowledged that, has lost
// them, or has unsubscribed from them. If the client's words name some of the names, only these count: clients such as
// Envoy take what is good in a response.

// standing is what of a rejection still counts.
type standing struct {
	// names are the names that still count.
	names []string
	// some: further names may count, which are not remembered; or there are none, and the client's next ACK counts.
	some bool
}

func (t *standing) stands() bool { return len(t.names) > 0 || t.some }

// drop has the names that which selects no longer count.
func (t *standing) drop(which func(string) bool) { t.names = slices.DeleteFunc(t.names, which) }

// Rejects returns the newest rejection that stands of something in a topic that in selects, nil if there is none. If in
// is nil, it selects all topics.
func (s *subscriptions) Rejects(in func(cache.Key) bool) *Rejection {
	for r := range s.nacks.newestFirst() {
		if r.standing.stands() && (in == nil || s.concerns(r, in)) {
			return r
		}
	}
	return nil
}

// concerns reports whether something of a rejected response was in a topic that in selects.
func (s *subscriptions) concerns(r *Rejection, in func(cache.Key) bool) bool {
	for i := range r.spans {
		switch p := &r.spans[i]; {
		case p.set != nil:
			if p.set.set != nil && !p.set.ended && s.concernsSet(r, p.set.set.Key(), in) {
				return true
			}
		case s.named.shared != nil && in(s.named.shared.group.First().Key()):
			return true
		}
	}
	for sub := range s.named.own() {
		if e := sub.entry(); e != nil && sub.isRejected() && r.response.mayHave(sub.sentAs()) && in(e.Key()) {
			return true
		}
	}
	return false
}

// concernsSet is concerns for a set that had changes in the response. The members of a view come from several scopes, so
// the rejected names decide.
func (s *subscriptions) concernsSet(r *Rejection, set cache.Key, in func(cache.Key) bool) bool {
	if !set.Scope.IsView() {
		return in(set)
	}
	names := r.standing.names
	if r.standing.some {
		names = slices.Clone(names)
		for name := range s.rejectedIn(r) {
			if names = append(names, name); len(names) >= mostBlameNames {
				break
			}
		}
	}
	return slices.ContainsFunc(names, func(name string) bool {
		return in(cache.Key{Scope: set.Scope, TypeURL: set.TypeURL, Name: name})
	})
}

// mostBlameNames bounds the names of a rejected response that are looked at.
const mostBlameNames = 1 << 10

// standingOf returns what counts of a new rejection.
func (s *subscriptions) standingOf(r *Rejection) (t standing) {
	looked := 0
	note := func(name string) (more bool) {
		if NamesResource(r.Reason, name) {
			t.names = append(t.names, strings.Clone(name))
		}
		looked++
		return looked < mostBlameNames && len(t.names) < maxRememberedNames
	}
	if r.Reason != WordsWithheld {
		for _, name := range r.Names.First {
			note(name)
		}
		if len(t.names) == 0 && r.response.had(hadMore) {
			s.rejectedIn(r)(note)
		}
	}
	if len(t.names) == 0 {
		t.names = slices.Clone(r.Names.First)
		t.some = r.response.had(hadMore) || len(t.names) == 0
	}
	return t
}

// refuse records in the cache that the client has refused a name in a response: the client is sent the resource again
// when it comes again with another version, though with the same content. So the client watches the name by itself.
func (s *subscriptions) refuse(r *Rejection, name string) {
	if i, ok := s.named.shared.find(name); ok {
		m := s.named.shared
		if !r.hasInGroup(m.group.ChangedAt(i, m.OnNew)) {
			return
		}
		m.take(i)
	}
	for sub := range s.ownOf(name) {
		if e := sub.entry(); e != nil && sub.isRejected() {
			sub.makeRare().refused = e.Refuse(r.SentAt)
			s.Topics.Refused(e.Key(), name, r.SentAt)
		}
	}
	for p := range r.ofSets() {
		p.set.set.Refuse(memberKey(name), r.SentAt)
		s.Topics.Refused(p.set.set.Key(), memberKey(name), r.SentAt)
	}
}

// renewed reports that a state has what the client has refused with another version.
func (s *nameSub) renewed(st *cache.State) bool {
	if !s.isRejected() || st.Resource == nil {
		return false
	}
	r := s.rare()
	return r != nil && r.refused.Renewed(st)
}

// renewedIn reports that a member of a set that the client has refused has come again with another version.
func (s *subscriptions) renewedIn(set *setSub) (some bool) {
	if s.nacks.standingIn(set) == nil {
		return false
	}
	set.set.Renewed(&set.SetWatch, func(name string) (more bool) {
		some = s.nacks.standsFor(name)
		return !some
	})
	return some
}

// settleRejections records what the client has accepted. acked are the responses that it has just acknowledged, inFlight
// those that it has not answered.
func (s *subscriptions) settleRejections(acked, inFlight []sentResponse) {
	for r := range s.nacks.newestFirst() {
		r.standing.drop(func(name string) bool {
			named := func(o sentResponse) bool { return slices.Contains(o.names.First, name) }
			unanswered := slices.ContainsFunc(inFlight, named) && !slices.ContainsFunc(acked, named)
			return !unanswered && !s.hasRejected(r, name, acked)
		})
		if r.standing.some && (len(acked) > 0 || r.response.had(hadMore)) {
			r.standing.some = false
			for range s.rejectedIn(r) {
				r.standing.some = true
				break
			}
		}
	}
}

// hasRejected reports that the client was sent nothing of a name since it has rejected it in a response. acked are the
// responses that it has just acknowledged: without one, only names that it has unsubscribed from no longer count.
func (s *subscriptions) hasRejected(r *Rejection, name string, acked []sentResponse) bool {
	own := false
	for sub := range s.ownOf(name) {
		if sub.isRejected() || len(acked) == 0 {
			return true
		}
		own = true
	}
	if own {
		return false
	}
	if i, ok := s.named.shared.find(name); ok {
		m := s.named.shared
		at := m.group.ChangedAt(i, m.OnNew)
		// A name whose content has changed, and changed back, is not sent again.
		sent := slices.ContainsFunc(acked, func(o sentResponse) bool { return o.mayHave(name) })
		return !sent || at > m.sentUpTo.Seq || r.hasInGroup(at)
	}
	for p := range r.ofSets() {
		change, present := p.set.set.ChangedAt(memberKey(name))
		if seen, _ := p.set.Seen(); change > seen || present && p.has(change) {
			return true
		}
	}
	return false
}

// ownOf iterates over the subscriptions that the client does not share with others, and by which it was sent a name.
func (s *subscriptions) ownOf(name string) iter.Seq[*nameSub] {
	return func(yield func(*nameSub) bool) {
		a := refByName(name)
		if sub, ok := s.named.table.Get(a.key(), (*nameSub).key); ok && !yield(sub) {
			return
		}
		for params := range s.params {
			if sub, ok := s.named.table.Get(resourceRef{name, true, params}.key(), (*nameSub).key); ok && !yield(sub) {
				return
			}
		}
		for _, sub := range s.aliases[a.key()] {
			if !yield(sub) {
				return
			}
		}
	}
}

// rejectedIn iterates over the names of which the client was sent nothing since it has rejected them in a response.
func (s *subscriptions) rejectedIn(r *Rejection) iter.Seq[string] {
	return func(yield func(string) bool) {
		for sub := range s.named.own() {
			if sub.isRejected() && r.response.mayHave(sub.sentAs()) && !yield(sub.sentAs()) {
				return
			}
		}
		if m := s.named.shared; m != nil {
			for i, name := range m.group.List().All() {
				if i := uint32(i); m.has(i) && r.response.mayHave(name) && r.hasInGroup(m.group.ChangedAt(i, m.OnNew)) && !yield(name) { //nolint:gosec // a request has fewer
					return
				}
			}
		}
		for p := range r.ofSets() {
			more := true
			p.set.set.ChangedIn(p.from, p.to, func(name string) bool {
				more = yield(name)
				return more
			})
			if !more {
				return
			}
		}
	}
}

// ofSets iterates over the rejected changes of the client's sets.
func (r *Rejection) ofSets() iter.Seq[*rejectedSpan] {
	return func(yield func(*rejectedSpan) bool) {
		for i := range r.spans {
			if p := &r.spans[i]; p.set != nil && p.set.set != nil && !p.set.ended && !yield(p) {
				return
			}
		}
	}
}

// hasInGroup reports that a change of the group was in the rejected response.
func (r *Rejection) hasInGroup(change uint64) bool {
	return slices.ContainsFunc(r.spans, func(p rejectedSpan) bool { return p.set == nil && p.has(change) })
}
