package session

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// What clients are not sent because an authority is silent or cannot be reached. xDS has no message for that, and
// clients take similar messages for an answer:
//
//   - Envoy passes a delta response without resources and without removed_resources to all its wildcard subscriptions
//     of the type, as an empty update, which ends their initial fetch. So the relay sends no such response while a
//     wildcard or glob has no answer, and everything but resources and removals waits.
//   - If something is missing in a SotW state, the client deletes it. If the state has no resource at all, the client
//     starts with nothing.

// deferredErrors wait until a response has something else in it, or until every set has an answer. Delta.
type deferredErrors struct {
	// names, by the keys of their subscriptions, are unavailable, or were not answered. sets are unavailable. members,
	// by their names, could not be fetched again.
	names   map[string]struct{}
	sets    map[*setSub]struct{}
	members map[string]*cache.Error
}

func (u *deferredErrors) empty() bool {
	return u == nil || len(u.names)+len(u.sets)+len(u.members) == 0
}

// forget drops the deferred errors of a subscription that has ended, or, if member, of a member that has changed since.
func (u *deferredErrors) forget(key string, set *setSub, member bool) {
	switch {
	case u == nil:
	case set != nil:
		delete(u.sets, set)
	case member:
		delete(u.members, key)
	default:
		delete(u.names, key)
	}
}

// maxDeferredMembers bounds the members, of which a control plane may have any number.
const maxDeferredMembers = 1000

func (u *deferredErrors) addMember(name string, err *cache.Error) {
	if len(u.members) == maxDeferredMembers {
		return
	}
	put(&u.members, name, err)
}

// withheld reports that a name's resource is withheld from a client that may hold one. The resource is put together
// from what is available, and the client may hold more; or it is from before the relay was started, and the client may
// hold something newer. Versions do not show which one is newer.
func withheld(sub *nameSub, st *cache.State, held bool) bool {
	return held && st.Status == cache.Present && (st.Partial || st.Stale) && sub.sent() != sentResource
}

// timesOut reports that the client's own timer ends its wait for a name about which a SotW control plane is silent, and
// nothing else does. In delta, Envoy takes the removal of a RouteConfiguration or ExtensionConfig that it waits for as
// the end of the timer, and not of the wait: it would never start.
func (d *Delta) timesOut(sub *nameSub) bool {
	if !d.isEnvoy || sub.sent() != sentNothing {
		return false
	}
	t := xdstype.Of(d.typeURL)
	return t == xdstype.Route || t == xdstype.Extension
}

func anyError(*cache.Error) bool { return true }
