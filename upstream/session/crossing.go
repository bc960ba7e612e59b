package session

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// In delta, a name and the glob of its directory share a stream. A removal has only the name of the
// resource: it does not say whether it is for the name or for the glob. The request of a name can cross
// the removal of a member: the control plane has sent the removal before it reads the request. It may then
// list fewer members than it serves by name, for example if it was restarted and has not restored
// everything. (The guard holds missing members of globs, but not names.) So the removal applies to the
// member only. The control plane has to answer the request of the name ("Incremental xDS": it sends what
// is subscribed to even if the client has it), and that answer counts. If there is none within the response
// timeout, the removal was the answer: some control planes (go-control-plane) send only one removal.

// noteCrossing notes, before names are requested, which of them have a glob that was requested before.
func (n *Names) noteCrossing() {
	for _, sub := range n.changed {
		if n.subs[sub.name] == sub && sub.wanted && !sub.sent {
			g := n.sets.globOf(sub.name)
			sub.unread = g != nil && g.sent
		}
	}
}

// ofSet reports whether a removal applies to a member of a set only: the control plane had no request for
// the name on this stream, or may not have read it yet.
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
	// The control plane does not remove from the glob what is no member. If the glob was given up, the name has the
	// resource that was its member.
	if n.sets == nil || n.sets.globOf(v.key) == nil {
		return sub.answer.Resource != nil
	}
	return n.sets.given(v.key) != nil
}

// noteRemoved notes that a member was removed. Its name waits for an answer of its own, once it is requested.
func (n *Names) noteRemoved(name string, now time.Time) {
	sub := n.subs[name]
	if n.sotw || !sub.answered || sub.answer.Resource == nil {
		return
	}
	if sub.removed = true; sub.sent {
		n.wait([]*subscription{sub}, now)
	}
}

// noteRead notes that the control plane has read the request of a name. That is certain if it sends an
// unchanged member again, which it does not do for the glob.
func (n *Names) noteRead(sub *subscription, r *cache.Resource) {
	if !sub.unread || r == nil || n.sets == nil {
		return
	}
	if member := n.sets.given(sub.name); member != nil && member.OriginVersion() == r.OriginVersion() && member.Hash() == r.Hash() {
		sub.unread = false
	}
}

// settleCrossing ends the wait of a name for its own answer. If there was a removal, that was the answer. Otherwise what
// is held is the newest.
func (n *Names) settleCrossing(sub *subscription, u *cache.Update) {
	removed, behind := sub.removed, sub.behind
	sub.unread, sub.removed, sub.behind = false, false, false
	if !removed {
		if behind {
			u.Changes = append(u.Changes, sub.answer)
		}
		return
	}
	n.expiries.End(sub.name)
	v := resourceUpdate{key: sub.name, gone: true}
	if c, ok := n.take(&v); ok {
		u.Changes = append(u.Changes, c)
	}
	u.Changes = n.takeAliases([]resourceUpdate{v}, u.Changes)
}
