package session

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// A name and the glob of its directory share a stream in delta, and a removal says only which resource is
// gone, and not for which of the two. The request of a name can cross the removal of a member on its way:
// the control plane has sent the removal before it reads that the name is requested. It may list less than
// it serves by name, as when it was restarted and has not restored all; of globs the guard holds what is
// missing then, but not of names. So such a removal is of the member only. The control plane has to answer
// the request ("Incremental xDS": what is subscribed to is sent, also if the client has it), and the answer
// is what counts. If there is none within the time of an answer, the removal was it: some control planes
// (go-control-plane) say once that a resource is gone.

// noteCrossing notes, before names are requested, which of them have a glob that was requested before.
func (n *Names) noteCrossing() {
	for _, sub := range n.changed {
		if n.subs[sub.name] == sub && sub.wanted && !sub.sent {
			g := n.sets.globOf(sub.name)
			sub.unread = g != nil && g.sent
		}
	}
}

// ofSet says that a removal is of a member of a set: the control plane had no request for the name on this
// stream, or may not have read it.
func (n *Names) ofSet(v *resourceUpdate) bool {
	sub := n.subs[v.key]
	switch {
	case sub == nil || !v.gone || v.err != nil:
		return false
	case !sub.sent:
		return true
	case !sub.unread:
		return false
	}
	// What is no member, the control plane does not remove from the glob. Of a glob that is given up, a name has what was
	// its member.
	if n.sets == nil || n.sets.globOf(v.key) == nil {
		return sub.answer.Resource != nil
	}
	return n.sets.given(v.key) != nil
}

// noteRemoved has a name wait for the answer of its own, once it is requested.
func (n *Names) noteRemoved(name string, now time.Time) {
	sub := n.subs[name]
	if n.sotw || !sub.answered || sub.answer.Resource == nil {
		return
	}
	if sub.removed = true; sub.sent {
		n.wait([]*subscription{sub}, now)
	}
}

// noteRead notes that the control plane has read the request of a name, if it sends a member again as it
// was: for the glob it does not.
func (n *Names) noteRead(sub *subscription, r *cache.Resource) {
	if !sub.unread || r == nil || n.sets == nil {
		return
	}
	if member := n.sets.given(sub.name); member != nil && member.Version() == r.Version() && member.Hash() == r.Hash() {
		sub.unread = false
	}
}

// settleCrossing ends the wait of a name for its own answer: a removal that came was that.
func (n *Names) settleCrossing(sub *subscription, u *cache.Update) {
	removed := sub.removed
	sub.unread, sub.removed = false, false
	if !removed {
		return
	}
	n.expiries.End(sub.name)
	v := resourceUpdate{key: sub.name, gone: true}
	if c, ok := n.take(&v); ok {
		u.Changes = append(u.Changes, c)
	}
	u.Changes = n.takeAliases([]resourceUpdate{v}, u.Changes)
}
