package collections

import (
	"cmp"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// What belongs together is written together. A response of a control plane may change members of several types, and a part
// of them may take longer: a new locator has to be looked up, or a large set is read in parts. So what has changed in a
// scope's sets, or in all views of a partition, is written in the order of the types, once none of these sets has work or
// queries outstanding, or after writeWithin. A set that clients do not have yet is not waited for, and does not wait.
//
// After writeWithin, removals still wait for the outstanding answers, because these may have the member. Clients apply a
// response's removals first, so additions of a type to which no other refers must not come before the removals that belong
// to them. If resources of the type have claims, what takes a claim proves that its former owner is gone: that removal
// does not wait. Otherwise the additions wait with the removals.

// writeWithin is how long changes wait for others.
const writeWithin = 250 * time.Millisecond

// together is what the derived sets of a scope have in common, or all views of a partition.
type together struct {
	scope cache.Scope
	sets  int
	// busy is the number of sets that were written before and have something outstanding.
	busy int
	// until is when changes wait no longer, zero if none wait.
	until time.Time
}

// join adds the set to those of its scope.
func (n *derivedSet) join() {
	scope := n.topic.Scope
	if _, isView := n.Resolver.sets.views[scope.Derived]; isView { // each type has a view of its own
		scope.Derived, scope.Authority = "view", ""
	}
	all := n.Resolver.together
	if all[scope] == nil {
		all[scope] = &together{scope: scope}
	}
	n.together = all[scope]
	n.together.sets++
}

// leave is the end of join.
func (n *derivedSet) leave() {
	n.written = false
	n.noteBusy()
	if n.together.sets--; n.together.sets == 0 {
		n.Resolver.together = cache.Without(n.Resolver.together, &n.rooms.together, n.together.scope)
	}
}

// noteBusy counts the set as busy, or not.
func (s *setContext) noteBusy() {
	if is := s.written && s.unanswered+s.outstanding+s.unfound > 0; is != s.counted {
		s.counted = is
		if s.together.busy--; is {
			s.together.busy += 2
		}
	}
}

// waits reports whether a topic that has changed waits for others.
func (r *Resolver) waits(d derived, now time.Time) bool {
	n, isSet := d.(*derivedSet)
	if !isSet || !n.applied || n.together.busy == 0 {
		return false
	}
	if n.together.until.IsZero() {
		n.together.until = now.Add(writeWithin)
	}
	return now.Before(n.together.until)
}

// collectAll collects what has changed and does not wait. next is when the first of the rest waits no longer, zero for
// never.
func (r *Resolver) collectAll(now time.Time) (updates map[updateKey]*cache.Update, next time.Time) {
	updates = map[updateKey]*cache.Update{}
	waited := map[*together]struct{}{}
	for d := range r.changed {
		n, isSet := d.(*derivedSet)
		if r.waits(d, now) {
			next = earlier(next, n.together.until)
			continue
		}
		r.changed = cache.Without(r.changed, &r.rooms.changed, d)
		if isSet {
			waited[n.together] = struct{}{}
		}
		r.collect(d, updates)
	}
	for t := range waited {
		t.until = time.Time{}
	}
	return updates, next
}

// letReplacedGo ends the wait of removals whose claims other members have taken. It returns these members.
func (n *derivedSet) letReplacedGo() (replaced map[string]struct{}) {
	if len(n.lost)+len(n.leavers) == 0 {
		return nil
	}
	taken := map[uint64]struct{}{}
	for key := range n.changedKeys {
		if c := n.union.members[key]; c != nil && c.winner.resource != nil {
			for _, claim := range c.winner.resource.Claims() {
				taken[claim] = struct{}{}
			}
		}
	}
	isTaken := func(r *cache.Resource) bool {
		for _, claim := range r.Claims() {
			if _, is := taken[claim]; is {
				return true
			}
		}
		return false
	}
	if len(taken) == 0 {
		return nil
	}
	for l := range n.leavers {
		l.removeReplaced(func(key string, r *cache.Resource) bool {
			_, changed := n.changedKeys[key]
			return !changed && isTaken(r)
		})
	}
	replaced = map[string]struct{}{}
	for key, r := range n.lost {
		if isTaken(r) {
			replaced[key] = struct{}{}
		}
	}
	return replaced
}

// waitsWithRemovals reports whether all changes of the set wait until it is known which members are gone.
func (n *derivedSet) waitsWithRemovals() bool {
	t := xdstype.Of(n.topic.TypeURL)
	if !n.applied || t.Referenced || t.Claims || !n.busy() && n.unfound == 0 {
		return false
	}
	if len(n.withheld)+len(n.leavers) > 0 {
		return true
	}
	for key := range n.changedKeys {
		if n.gone(key) {
			return true
		}
	}
	return false
}

// write gives updates to the receiver: additions in the order in which clients need the types, also of several scopes, and
// then the removals of what others may refer to.
func (r *Resolver) write(updates map[updateKey]*cache.Update) {
	all := make([]cache.Update, 0, len(updates))
	for _, u := range updates {
		if len(u.Changes)+len(u.Sets) > 0 {
			all = append(all, *u)
		}
	}
	cache.InOrder(all)
	scopes := slices.Collect(cache.EachScope(all))
	slices.SortStableFunc(scopes, func(a, b []cache.Update) int {
		return cmp.Compare(xdstype.Of(a[0].TypeURL).Order, xdstype.Of(b[0].TypeURL).Order)
	})
	var removals [][]cache.Update
	for _, of := range scopes {
		if len(scopes) > 1 {
			if gone := cutRemovals(of); len(gone) > 0 {
				removals = append(removals, gone)
			}
		}
		r.to.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: of}})
	}
	for _, of := range slices.Backward(removals) {
		r.to.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: of}})
	}
}

// cutRemovals takes from updates the members that are removed, if others may refer to these.
func cutRemovals(updates []cache.Update) (removals []cache.Update) {
	for i := range updates {
		u := &updates[i]
		if !xdstype.Of(u.TypeURL).Referenced {
			continue
		}
		later := cache.Update{Scope: u.Scope, TypeURL: u.TypeURL}
		for j := range u.Sets {
			set := &u.Sets[j]
			if set.Extent.Full() || set.Err != nil {
				continue
			}
			gone := *set
			gone.Changes = nil
			set.Changes = slices.DeleteFunc(set.Changes, func(c cache.Change) bool {
				if c.Gone {
					gone.Changes = append(gone.Changes, c)
				}
				return c.Gone
			})
			if len(gone.Changes) > 0 {
				later.Sets = append(later.Sets, gone)
			}
		}
		if len(later.Sets) > 0 {
			removals = append(removals, later)
		}
	}
	return removals
}
