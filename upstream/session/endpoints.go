package session

import (
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// The endpoints of Clusters that are gone. If a strict control plane (see strict.go) renames a Cluster, it answers no
// request for the new endpoints that has the old ones, too. Clients request the old ones until they have processed the
// removal of the Cluster, and they get that only after the routes, for which they need the new endpoints. So once no
// Cluster of the control plane refers to endpoints any more, the relay leaves them out of its requests. It requests them
// again when a Cluster refers to them, and otherwise tries them as all names that are left out: a client may need
// them for a Cluster that it has from elsewhere.

// noteLostEndpoints notes to which endpoints the Clusters before a full response referred, that are gone or refer to others
// now.
func (s *Sets) noteLostEndpoints(before *cache.Resources) {
	if xdstype.Of(s.typeURL) != xdstype.Cluster || !s.habits.Strict(s.answers) {
		return
	}
	now, i := s.members(), 0
	for key, cluster := range before.All() {
		yield(i, yieldEvery)
		i++
		next := now.Get(key)
		if next == cluster || next != nil && next.Hash() == cluster.Hash() {
			continue
		}
		if name := endpointsOf(cluster); next == nil || name != endpointsOf(next) {
			s.lostEndpoints = append(s.lostEndpoints, name)
		}
	}
}

// endpointsOf returns the canonical name of the endpoints to which a Cluster refers, "" for a redirect.
func endpointsOf(cluster *cache.Resource) string {
	if cluster.Redirect() != "" {
		return ""
	}
	return canonical(cache.EndpointsOf(cluster))
}

// refersTo returns which of some endpoints the Clusters refer to.
func (s *Sets) refersTo(endpoints map[string]bool) map[string]bool {
	referred, i := map[string]bool{}, 0
	for _, cluster := range s.members().All() {
		yield(i, yieldEvery)
		i++
		if name := endpointsOf(cluster); endpoints[name] {
			referred[name] = true
		}
	}
	return referred
}

// ClustersChanged implements Session.
func (s *sotwNames) ClustersChanged(now time.Time, clusters *Topics) (due bool) {
	n, c := s.names, clusters.Sets
	if c == nil || !n.strict() {
		return false
	}
	lost, endpoints := map[string]bool{}, map[string]bool{}
	for _, name := range c.lostEndpoints {
		if sub := n.subs[name]; sub != nil && sub.wanted && sub.sent && !sub.parked {
			lost[name], endpoints[name] = true, true
		}
	}
	for _, sub := range s.unreferred() {
		endpoints[sub.name] = true
	}
	if len(endpoints) == 0 {
		return false
	}
	referred := c.refersTo(endpoints)
	var gone, back []*subscription
	for name := range endpoints {
		switch sub := n.subs[name]; {
		case !referred[name] && lost[name]:
			gone = append(gone, sub)
		case referred[name] && sub.unreferred:
			if sub.unreferred, sub.leftOut = false, false; sub.parked {
				sub.seen = min(sub.seen, n.before) // nothing has come since it was left out
				back = append(back, sub)
			}
		}
	}
	s.restore(now, back)
	s.leaveUnreferred(now, gone)
	n.parked = len(s.those(isParked))
	s.awaitAnswer(now, back)
	due = len(gone)+len(back) > 0
	s.dirty = s.dirty || due
	return due
}

// unreferred returns the endpoints to which no Cluster refers any more.
func (s *sotwNames) unreferred() []*subscription {
	if s.names.parked == 0 {
		return nil
	}
	return s.those(func(sub *subscription) bool { return sub.unreferred })
}

// isLeftAsUnreferred reports that endpoints are left out because no Cluster refers to them.
func isLeftAsUnreferred(sub *subscription) bool { return sub.parked && sub.unreferred }

// leaveUnreferred leaves endpoints out to which no Cluster refers any more, and has them tried later.
func (s *sotwNames) leaveUnreferred(now time.Time, gone []*subscription) {
	if len(gone) == 0 {
		return
	}
	t := &s.trials
	for _, sub := range gone {
		sub.parked, sub.unreferred, sub.first = true, true, false
	}
	others := func(of []*subscription) []*subscription {
		return slices.DeleteFunc(slices.Clone(of), isLeftAsUnreferred)
	}
	t.current, t.others, t.added, t.known = others(t.current), others(t.others), others(t.added), others(t.known)
	for i := range t.rest {
		t.rest[i] = others(t.rest[i])
	}
	if t.ended, t.wait = now, silenceWait; t.series {
		t.news = true
	} else {
		s.retryLater(earlier(t.retryAt, now.Add(silenceWait)))
	}
}
