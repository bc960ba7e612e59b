package session

import "github.com/xds-relay/xds-relay/cache"

// TTLs. xDS: "TTL", "SotW TTL". A client that knows TTLs is sent a resource's TTL with it, and a
// heartbeat whenever the origin has renewed it (Resource.SentWithTTL). Other clients are sent neither,
// and are not woken by a heartbeat. The source ends what the control plane does not renew (upstream: names.expire and
// sets.expire). Nobody renews what a client holds from before a redirect, so its TTL ends here.

// heartbeatDue says that a heartbeat is due of a resource that the client holds. xDS: "TTL".
func (s *nameSub) heartbeatDue(st *cache.State) bool {
	return st.Resource.SentWithTTL(s.of().Form) && s.Own[ownHeartbeats] != byte(st.Heartbeats)
}

// keepBeforeRedirect has the client keep what it was sent. It was sent that earlier, so that a TTL
// ends late rather than early.
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
