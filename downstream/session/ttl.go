package session

import "github.com/xds-relay/xds-relay/cache"

// TTLs. xDS: "TTL", "SotW TTL". A client that supports TTLs is sent a resource's TTL with it, and a heartbeat whenever
// the origin has renewed the TTL (Resource.SentWithTTL). Other clients are sent neither, and a heartbeat does not wake
// them. The source removes what the control plane does not renew (upstream: names.expire and sets.expire). Nothing
// renews what a client holds from before a redirect, so its TTL expires here.

// heartbeatDue reports that a heartbeat is due for a resource that the client holds. xDS: "TTL".
func (s *nameSub) heartbeatDue(st *cache.State) bool {
	return st.Resource.SentWithTTL(s.of().Form) && s.Own[ownHeartbeats] != byte(st.Heartbeats)
}

// keepBeforeRedirect lets the client keep what it was sent. The client was sent that earlier, so the TTL expires late
// rather than early.
func (s *nameSub) keepBeforeRedirect(was *cache.Resource) {
	k := &valueBeforeRedirect{resource: was, sub: s}
	if was.TTL() > 0 {
		k.stop = s.of().Host.Expire(was, k)
	}
	s.makeRare().setBefore(k)
}

// Enter implements Subscription.
func (k *valueBeforeRedirect) Enter() bool {
	was := k.marked
	k.marked = true
	return !was
}

// Leave implements Subscription.
func (k *valueBeforeRedirect) Leave() { k.marked = false }

// MoveToPending implements Subscription.
func (k *valueBeforeRedirect) MoveToPending() {
	k.expired = true
	k.sub.MoveToPending()
}
