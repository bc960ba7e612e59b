package session

import (
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/urn"
)

// Names that several subscriptions of a delta client cover. The owner of a name sends it (overlap.go). The name is gone
// when none of them has it. When its owner may have changed, the name is reviewed: the client is sent the current state
// of the name in the sets.

// stateOf returns the state of a name for the client. The control plane sends the names and the sets of a type on two
// streams, either of which may be behind the other. So a resource that one of the client's sets has is not removed
// because the names stream reports it absent.
func (d *Delta) stateOf(sub *nameSub) cache.State {
	st := sub.state()
	if !d.hasSets() && len(d.borrowed) == 0 {
		return st
	}
	if sub.entry() == nil {
		return d.stateOfRefused(sub, st)
	}
	lent, noted := d.borrowed[sub]
	if st.Status == cache.Absent {
		set := d.standIn(sub.ref())
		res, _, waits := first(sub.memberKey(), set)
		switch {
		case res != nil && (!set.glob() || set.set.nameOf(res) == sub.name()):
			if !lent {
				d.borrow(sub, res)
			}
			return cache.State{Status: cache.Present, Resource: res, Origin: set.set.Origin(), Heartbeats: sub.heartbeats()}
		case lent && (waits != nil || d.wildRefused(sub.ref())):
			return cache.State{Status: cache.Requested}
		case sub.sent() == sentResource && waits != nil && waits.awaitsFirst():
			// If the name has moved, too, the client has the resource from before, and the set may have it.
			put(&d.borrowed, sub, false)
			return cache.State{Status: cache.Requested}
		}
	}
	if noted {
		delete(d.borrowed, sub)
	}
	if lent {
		d.renewTTL(sub, st.Resource)
	}
	return st
}

// stateOfRefused is stateOf for a refused name. What the client keeps of it gives way to what a set has: see ownsName.
func (d *Delta) stateOfRefused(sub *nameSub, st cache.State) cache.State {
	res, by := d.replacement(sub)
	switch {
	case res == nil, by.glob() && by.set.nameOf(res) != sub.name():
		return st
	case by.fresh, by.moved: // all of it is compared anyway
		return st
	case st.Status == cache.Absent:
		st.Err = nil // not both in one response
	}
	if sub.rare().beforeRedirect != nil {
		d.renewTTL(sub, res)
	}
	sub.takeFromSet()
	return cache.State{Status: cache.Present, Resource: res, Err: st.Err, Origin: by.set.Origin(), Heartbeats: sub.heartbeats()}
}

// wildRefused reports whether the wildcard is refused and may have given a name's resource before.
func (d *Delta) wildRefused(a resourceRef) bool {
	return d.wild != nil && d.wild.set == nil && d.wild.covers(a) && !urn.IsXdstp(a.name)
}

// borrow records that the client has a set's resource for a name.
func (d *Delta) borrow(sub *nameSub, res *cache.Resource) {
	put(&d.borrowed, sub, true)
	d.renewTTL(sub, res)
}

// renewTTL has a resource with a TTL sent to the client although the client has that content: the client still runs the
// TTL that the resource had on the other stream.
func (d *Delta) renewTTL(sub *nameSub, res *cache.Resource) {
	if res.SentWithTTL(d.Form) {
		sub.Note = ofNoContent
	}
}

// ownsName reports that the client is sent a name's own state, and not that of a set which has the name, too. The
// wildcard belongs to the client's Node: a member with an xdstp name is not the authority's resource of this name.
// While the name's own state is not known (requested, or failed), the set's state counts. What the client keeps of a
// refused name gives way to a set, as if the name were absent: the refusal need not end, and the set is up to date.
func (s *nameSub) ownsName(set *setSub) bool {
	elsewhere := !set.glob() && urn.IsXdstp(s.name())
	switch s.state().Status {
	case cache.Present:
		return s.entry() != nil || elsewhere
	case cache.Absent:
		return elsewhere
	case cache.Requested, cache.Failed:
	}
	return false
}

// awaitsFirst reports that a set has moved and has no answer yet.
func (s *setSub) awaitsFirst() bool {
	status, _ := s.status()
	return s.moved && status == cache.Requested
}

// reviewBorrowed has the session look again at the names for which the client has a set's resource: a set has ended, or
// has been answered.
func (d *Delta) reviewBorrowed() {
	for sub := range d.borrowed {
		sub.MoveToPending()
	}
}

// reviewWaiting is reviewBorrowed for the names that wait for the answer of a set.
func (d *Delta) reviewWaiting() {
	for sub, lent := range d.borrowed {
		if !lent {
			sub.MoveToPending()
		}
	}
}

// reviewName has the client sent what the sets have under the name of u.
func (d *Delta) reviewName(a resourceRef, u review) {
	set := d.globOf(a)
	if wild := d.wildOf(a); wild != nil && (set == nil || !present(set)) {
		set = wild
	}
	if set == nil && len(d.views) > 0 {
		_, set, _ = first(memberKey(a.name), d.covering(a)...)
	}
	if set != nil {
		d.reviewIn(set, u)
	}
}

func (d *Delta) reviewIn(set *setSub, u review) {
	d.noteReview(set, u)
	if present(set) {
		set.MoveToPending() // otherwise the review comes when the set is present
	}
}

// noteReview is reviewIn for a set that is being sent.
func (d *Delta) noteReview(set *setSub, u review) {
	key := memberKey(u.name)
	was := set.reviews[key]
	d.endReviewIn(set, key)
	u.ended, u.unsubscribed = u.ended || was.ended, u.unsubscribed || was.unsubscribed
	put(&set.reviews, key, u)
	d.countReview(u, 1)
}

func (d *Delta) countReview(u review, n int) {
	d.reviewing += n
	if u.unsubscribed {
		d.unsubscribed += n
	}
}

// endReview drops a name from those to be reviewed.
func (d *Delta) endReview(a resourceRef) {
	if d.reviewing == 0 {
		return
	}
	for _, set := range d.covering(a) {
		d.endReviewIn(set, memberKey(a.name))
	}
}

func (d *Delta) endReviewIn(set *setSub, key string) {
	if u, there := set.reviews[key]; there {
		delete(set.reviews, key)
		d.countReview(u, -1)
	}
}

// leavesToOwner reports that another set may have a member too, and marks the name for review if it has changed.
func (d *Delta) leavesToOwner(set *setSub, a resourceRef, m cache.Member) bool {
	switch {
	case set.glob() && (m.News != cache.Removed || !d.overlaps(set)) && !d.ownedByAnother(set, a):
		return false
	case !set.glob() && d.owner(a) == nil:
		return false
	}
	if m.News == cache.Changed || m.News == cache.Removed {
		d.noteReview(set, review{name: m.Name})
	}
	return true
}

// loseMember removes a name from a set that is being sent, unless another set has it.
func (d *Delta) loseMember(set *setSub, a resourceRef) {
	if set.glob() && d.overlaps(set) || !set.glob() && d.owner(a) != nil {
		d.noteReview(set, review{name: a.name})
		return
	}
	put(&d.removals, a.key(), removal{ref: a, by: set})
}

// sendReviewed adds to r what the sets have of the names under review, as far as it fits.
func (d *Delta) sendReviewed(r *Response) {
	for len(d.reviewable) > 0 && d.sendReviewedOf(r, d.reviewable[0]) {
		d.reviewable = d.reviewable[1:]
	}
	if len(d.reviewable) == 0 {
		d.reviewable = nil
	}
}

func (d *Delta) sendReviewedOf(r *Response, set *setSub) bool {
	// Names of which the set does not know yet come back.
	return d.sendReviewedNames(r, set, slices.Sorted(maps.Keys(set.reviews)))
}

// sendReviewedNames adds to r what the client's sets have under names that it has unsubscribed from, or that another of
// its subscriptions has lost: the resource, an error, or the removal. It returns false if r is full.
func (d *Delta) sendReviewedNames(r *Response, set *setSub, keys []string) bool {
	for _, key := range keys {
		u := set.reviews[key]
		a := set.ref.of(u.name)
		glob := d.owner(a)
		res, by, waits := first(key, d.covering(a)...)
		switch {
		case d.named.get(a.key()).answers():
			// Its own subscription sends it.
		case !u.ended && glob != nil && (by == glob || !present(glob) && glob.holds(u.name)):
			// The glob sends it, now or later; until then the client keeps what it has.
		case res != nil:
			name := u.name
			if urn.IsXdstp(name) {
				name = by.set.nameOf(res)
			}
			same, other := r.hasOwn(a.of(name).key(), d.mark(res))
			err, size := by.set.Err(key), res.Size(name, set.form())
			if err != nil {
				size += sizeError(name, err)
			}
			if other || !r.fits(size, d.Limit) {
				return false
			}
			if !same {
				r.from(by.set.Origin())
				r.addDelta(name, res, set.form())
				if err != nil { // for the client, the resource ends an earlier error
					r.addError(wire.DeltaErrors, name, err)
				}
			}
			if glob.holds(name) {
				glob.initial[name] = ""
			}
			delete(d.removals, a.key())
			d.endReview(a) // in the other set too
		case waits != nil && present(waits): // its first answer is incomplete
			d.endReviewIn(set, key)
			d.noteReview(waits, u)
			continue
		case waits != nil && u.ended:
			d.endReviewIn(set, key)
			d.reviewIn(waits, u)
			continue
		default:
			if !d.sendErrorOfSets(r, a, set) {
				return false
			}
		}
		d.endReviewIn(set, key)
	}
	return true
}

// sendErrorOfSets adds to r why the sets that cover a name do not have it, and reports whether it fitted. With an
// error, the client keeps what it has. Without one, by removes the name.
func (d *Delta) sendErrorOfSets(r *Response, a resourceRef, by *setSub) bool {
	for _, set := range d.covering(a) {
		if set.set == nil {
			continue
		}
		err := set.set.Err(memberKey(a.name))
		switch {
		case err == nil:
			continue
		case d.mustDefer(r):
			d.deferLater().addMember(a.name, err)
		case !r.fits(sizeError(a.name, err), d.Limit):
			return false
		default:
			r.addError(wire.DeltaErrors, a.name, err)
		}
		return true
	}
	put(&d.removals, a.key(), removal{ref: a, by: by})
	return true
}

// overlapping returns what the client holds from a set, or may hold, and what another set may cover too but has not
// sent because this set does.
func (d *Delta) overlapping(set *setSub) (held []resourceRef) {
	if set.set == nil || !d.overlaps(set) {
		return nil
	}
	add := func(name, _ string) {
		a := set.ref.of(name)
		if d.named.get(a.key()) == nil && (set.glob() || d.owner(a) != nil) {
			held = append(held, a)
		}
	}
	set.set.SentTo(&set.SetWatch, add)
	initial := set.initial
	if !set.glob() {
		initial = d.initial
	}
	for name := range initial {
		add(name, "")
	}
	set.set.Since(&cache.SetWatch{}, func(m cache.Member) bool {
		if m.Resource != nil {
			add(m.Name, "")
		}
		return true
	})
	return held
}

// reassign reviews the names of a set that has ended: the client cannot tell whether other sets have them. held is what
// overlapping returned before the set ended.
func (d *Delta) reassign(set *setSub, held []resourceRef) {
	for _, u := range set.reviews {
		d.reviewName(set.ref.of(u.name), u)
		d.countReview(u, -1)
	}
	set.reviews = nil
	for _, a := range held {
		d.reviewName(a, review{name: a.name, ended: true})
	}
}
