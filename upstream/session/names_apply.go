package session

import (
	"maps"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// How a response changes names.

// apply applies a response. version is its version_info, or system_version_info.
func (n *Names) apply(now time.Time, v *accepted, sotw bool, version string) cache.Update {
	n.took(now)
	n.hidden = v.hidden
	// A response with only heartbeats is not the whole state: it has only resources
	// with a TTL. xDS: "SotW TTL".
	full := sotw && !v.hidden && !v.onlyBeats() && xdstype.Of(n.typeURL).FullState
	if full {
		n.full = n.responses
	}
	v.list = n.resolve(v.list, full, n)
	if n.takeVersion(v, version, n.hasAll) {
		n.having = 0
	}
	u := n.NewUpdate()
	u.Changes = make([]cache.Change, 0, len(v.list))
	work := parts{every: yieldEvery}
	for i := range v.list {
		work.begin(v.list[i].size())
		n.keepUnasked(&v.list[i])
		n.noteTold(&v.list[i])
		if n.ofSet(&v.list[i]) {
			n.noteRemoved(v.list[i].key, now)
			continue
		}
		if c, ok := n.take(&v.list[i]); ok && n.subs[c.Name].wanted {
			u.Changes = append(u.Changes, c)
		}
	}
	u.Changes = n.takeAliases(v.list, u.Changes)
	for i := range v.list {
		yield(i, yieldEvery)
		n.renewTTL(now, &v.list[i], n.holds(v.list[i].key))
	}
	if full {
		u.Changes = n.takeMissing(u.Changes)
	}
	n.awaitTold(now)
	for i := range u.Changes {
		u.Changes[i].Answer = n.answering
	}
	n.now = nil
	return u
}

// take applies the update of one name, and returns the change. It is not ok if nothing has changed.
func (n *Names) take(v *resourceUpdate) (c cache.Change, ok bool) {
	sub := n.subs[v.key]
	switch {
	case sub == nil:
		return c, false // it is not subscribed to
	case v.heartbeat:
		return n.keepAlive(sub, v.resource)
	}
	c, held := n.changeOf(v, sub.answer.Resource)
	c.Name = sub.name
	origin, via := sub.answer.Origin, sub.via
	if via != "" && c.Gone {
		n.unalias(sub.name) // whichever resource lists it
	}
	n.noteRead(sub, c.Resource)
	n.answer(sub, c)
	if held != nil && c.Resource == nil {
		sub.via = via
	}
	if sub.answer.Resource = held; held != nil && c.Origin == nil && c.Err != nil {
		sub.answer.Origin = origin // the held resource keeps its version
	}
	sub.reported = v.err != nil && !v.bad
	return c, true
}

// keepAlive applies a heartbeat: only the TTL of the resource is new, and the resource counts as
// contained in the response.
func (n *Names) keepAlive(sub *subscription, r *Resource) (cache.Change, bool) {
	held := sub.answer.Resource
	if held == nil {
		if sub.wanted && sub.expired {
			n.refresh(sub) // it still exists at the control plane
		}
		return cache.Change{}, false
	}
	sub.seen = n.responses
	c := sub.answer
	c.Resource = held.WithTTL(r.TTL)
	if n.now != nil && c.Err == nil {
		c.Origin = n.now
	}
	if n.has(&c) && !n.has(&sub.answer) {
		n.having++
	}
	sub.answer = c
	return c, true
}

// takeMissing removes the resources that a full response does not have.
// xDS: "Deleting Resources", "Knowing When a Requested Resource Does Not Exist".
func (n *Names) takeMissing(changes []cache.Change) []cache.Change {
	for _, name := range slices.Sorted(maps.Keys(n.subs)) {
		sub := n.subs[name]
		absent := sub.isAbsent()
		// A name that was added on this stream, or again, may be missing because the control plane
		// sent the response before it received the request. A name that was silent for the response
		// timeout was requested long before.
		known := sub.sent && !sub.left && (sub.first || sub.answer.Resource != nil || sub.isSilent() || sub.unheard)
		// A name that is requested once more was missing in a request, and may be missing because of that.
		if sub.seen == n.responses || !known || absent || sub.reported || sub.repeated || sub.parked {
			continue
		}
		sub.answered, sub.answer, sub.via = true, cache.Change{Name: name, Origin: n.now}, ""
		n.unalias(name)
		n.expiries.End(name)
		if sub.wanted {
			changes = append(changes, sub.answer)
		}
	}
	return changes
}

// silent applies that a SotW control plane does not answer a name, but others. A held
// resource stays.
func (n *Names) silent(sub *subscription, timeout time.Duration, u *cache.Update) {
	err := noAnswer(timeout)
	err.Unanswered = true
	if !sub.answered {
		sub.via = ""
	}
	sub.answered = true
	sub.answer = cache.Change{Name: sub.name, Resource: sub.answer.Resource, Err: err}
	u.Changes = append(u.Changes, sub.answer)
}

// isSilent reports whether the cache's newest information about a name is that it is silent.
func (sub *subscription) isSilent() bool {
	return sub.answered && sub.answer.Err != nil && sub.answer.Err.Unanswered
}

// hasAll reports whether a SotW response has all names with the present version.
func (n *Names) hasAll(v *accepted) bool {
	having := 0
	for i := range v.list {
		o := &v.list[i]
		if o.resource == nil && o.variant == nil {
			continue
		}
		if sub := n.subs[o.key]; sub != nil && n.has(&sub.answer) {
			having++
		}
	}
	return having == n.having
}

// expire removes resources that were not renewed in time. xDS: "TTL".
func (n *Names) expire(now time.Time) cache.Update {
	if !n.forgetAt.IsZero() && !now.Before(n.forgetAt) {
		n.forgetAt = time.Time{}
	}
	u := n.NewUpdate()
	n.confirmDue(now, &u)
	n.loseTold(now, &u)
	n.takeReturns(now)
	for _, key := range n.expiries.Due(now) {
		v := n.expireVariant(key, n)
		if c, ok := n.take(&v); ok {
			n.subs[key].expired = v.gone
			if n.subs[key].wanted {
				u.Changes = append(u.Changes, c)
			}
		}
		u.Changes = n.takeAliases([]resourceUpdate{v}, u.Changes)
		n.shown = "" // on a new stream the control plane must send it again
	}
	return u
}
