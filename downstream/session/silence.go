package session

import (
	"github.com/xds-relay/xds-relay/cache"
)

// What clients are not sent because an authority is silent or cannot be reached. xDS
// has no word for that, and clients take what comes close to it for an answer:
//
//   - Envoy hands a delta response without resources and without removed_resources to
//     all its wildcard subscriptions of the type, as an empty update, which ends their
//     initial fetch. So there is none as long as a wildcard or glob has no answer, and
//     what there is to say but resources and removals waits.
//   - A SotW state in which something is missing deletes that, and one without any
//     resource starts a client with nothing.

// deferredErrors wait until a response has something in it, or until no set is without
// an answer. Delta.
type deferredErrors struct {
	// names, by the keys of their subscriptions, cannot be had, or were not answered; sets
	// cannot be had; members, by their names, could not be had anew.
	names   map[string]struct{}
	sets    map[*setSub]struct{}
	members map[string]*cache.Error
}

func (u *deferredErrors) empty() bool {
	return u == nil || len(u.names)+len(u.sets)+len(u.members) == 0
}

// forget drops what waits of a subscription that has ended, or, if member, of a member
// of which something else was said.
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

// maxUnsaidMembers bounds the members, of which a control plane may have any number.
const maxDeferredMembers = 1000

func (u *deferredErrors) addMember(name string, err *cache.Error) {
	if len(u.members) == maxDeferredMembers {
		return
	}
	put(&u.members, name, err)
}

// withheld says that a name's resource is not for a client that may hold one: it is put together
// from what could be had, and the client may hold more; or it is from before the relay was started,
// and the client may hold something newer. Which of two versions is newer does not show in them.
func withheld(sub *nameSub, st *cache.State, held bool) bool {
	return held && st.Status == cache.Present && (st.Partial || st.Stale) && sub.sent() != sentResource
}

func anyError(*cache.Error) bool { return true }
