package session

import (
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// What a delta client is sent of its sets: the wildcard and glob collections. overlap.go has the rule for a name that
// several of them cover; delta_reviews.go applies it.

// sendSet adds to r what has changed in a set, and reports whether it fitted.
func (d *Delta) sendSet(r *Response, set *setSub) bool {
	switch status, err := set.status(); status {
	case cache.Requested, cache.Absent:
		return true
	case cache.Failed:
		d.reviewWaiting()
		return d.sendSetError(r, set, err)
	case cache.Present:
		if set.fresh && set.set.Len() == 0 && set.set.HasGaps(anyError) {
			return true // the set knows only that some members could not be fetched
		}
	}
	answers, before := set.fresh, r.size
	set.stale, set.unclear = set.set.Stale(), d.isUnclear(set)
	_, from := set.Seen()
	all := set.set.SinceInChunks(&set.SetWatch, d.runs(r, set), func(m cache.Member) bool { return d.sendMember(r, set, m) })
	if r.size > before || answers && r.empty() {
		r.from(set.set.Origin())
	}
	if _, to := set.Seen(); r.size > before {
		d.noteSpan(set, from, to)
	}
	if !all || !d.sendHeldBack(r, set) || !d.sendApart(r, set) {
		return false
	}
	held, lacked := len(set.initial) > 0, set.lacks
	d.removeVanished(set)
	if held && lacked && !set.lacks && set.glob() {
		d.removeEmpty(set)
	}
	if set.fresh {
		d.confirmed = true
		set.setFresh(false)
		set.sentByName = nil
		if set.glob() {
			d.removeMissed(set)
		}
		d.reviewBorrowed()
	}
	if set.moved {
		set.moved = false
		d.reviewBorrowed()
	}
	if set.begun {
		d.markComplete(r, set)
	}
	if len(set.reviews) > 0 {
		d.reviewable = append(d.reviewable, set) // to be sent once all sets are up to date
	}
	return true
}

// markComplete adds to r that the client was sent the whole first answer for a set, if the relay itself has all of it, and
// the client wants to know that.
func (d *Delta) markComplete(r *Response, set *setSub) {
	marks := d.Host.MarksComplete()
	if marks && (set.stale || set.unclear || set.set.Incomplete() || set.set.Partial()) {
		return
	}
	set.begun = false
	if !marks {
		return
	}
	for _, name := range set.names() {
		r.addPrivate(wire.DeltaComplete, []byte(name))
	}
}

// runs returns how the client is sent many members at once. It returns nil unless the client holds nothing, and has no
// other subscription, that these members could overlap with.
func (d *Delta) runs(r *Response, set *setSub) *cache.ChunkOptions {
	if !set.fresh || d.named.len()+len(set.initial)+len(d.initial)+len(d.removals)+d.reviewing > 0 {
		return nil
	}
	if !set.glob() && len(d.byGlob) > 0 || d.sharesMembers(set) {
		return nil // see leavesToOwner
	}
	return &cache.ChunkOptions{Form: set.form(), MaxBytes: d.Limit - responseOverhead - len(r.TypeURL), Yield: func(run *cache.EncodedChunk) bool {
		if !r.fits(run.Delta().Len(), d.Limit) {
			return false
		}
		r.addRun(run)
		return true
	}}
}

func (d *Delta) sendSetError(r *Response, set *setSub, err *cache.Error) bool {
	if set.errSent || d.leftUnanswered(err) {
		return true
	}
	if !r.substantial && !d.errorsAlone {
		put(&d.deferLater().sets, set, struct{}{})
		return true
	}
	size := 0
	for _, name := range set.names() {
		size += sizeError(name, err)
	}
	if !r.fits(size, d.Limit) {
		return false
	}
	for _, name := range set.names() {
		r.addError(wire.DeltaErrors, name, err)
	}
	set.errSent = true
	return true
}

// removeVanished removes what the client holds of a set and the set does not have, once all that the set has was sent.
func (d *Delta) removeVanished(set *setSub) {
	d.findVanished(set)
	incomplete := set.set.Incomplete()
	if set.set.Partial() && !incomplete {
		set.lacks = set.lacks || set.fresh
		return
	}
	if set.lacks = incomplete && (set.fresh || set.lacks); set.set.AwaitsAll() {
		return
	}
	maps.DeleteFunc(set.initial, func(name, _ string) bool { return !incomplete && !set.set.Failed(memberKey(name)) })
	if len(set.initial) == 0 {
		set.initial = nil
	}
}

// findVanished records the removal of what the client holds of a set and the set does not have. While the set is
// incomplete, that is only what the control plane has removed. Of a view that lacks members of some globs, it is what
// the other globs do not have.
func (d *Delta) findVanished(set *setSub) {
	if len(set.initial)+len(d.initial) == 0 || set.set.AwaitsAll() || set.set.MayHaveAny() && !set.set.Incomplete() {
		return // what is missing may exist
	}
	vanished := func(held map[string]string, but func(resourceRef) bool) {
		for name := range held {
			key, a := memberKey(name), set.ref.of(name)
			if d.named.get(a.key()) == nil && !but(a) && set.set.Member(key) == nil && !set.set.Failed(key) && !set.set.Awaits(key) && !set.set.MayHave(key) {
				d.loseMember(set, a)
				delete(held, name)
			}
		}
	}
	vanished(set.initial, func(resourceRef) bool { return false })
	if (set.fresh || set.lacks) && !set.glob() {
		// Those of globs that were subscribed to later.
		vanished(d.initial, func(a resourceRef) bool {
			glob := d.globOf(a)
			return glob != nil && glob.set.Member(memberKey(a.name)) != nil
		})
	}
}

// removeMissed sends the recent removals of a glob, which the client may have missed, because the client does not state
// which members it holds. It also sends that the glob is empty.
// TP1: "Glob".
func (d *Delta) removeMissed(set *setSub) {
	var gone []removal
	set.set.RecentlyRemoved(func(name, constraints string) {
		a := set.ref.of(name)
		if _, there := d.removals[a.key()]; !there && d.named.get(a.key()) == nil {
			gone = append(gone, removal{ref: a, by: set, constraints: constraints})
		}
	})
	for _, g := range gone {
		// If another set has the member, that set sends it.
		if res, _, _ := first(memberKey(g.ref.name), d.covering(g.ref)...); res == nil {
			put(&d.removals, g.ref.key(), g)
		}
	}
	if len(set.initial) == 0 || !set.set.Incomplete() {
		d.removeEmpty(set)
	}
}

// removeEmpty sends that a glob is empty, if it is.
func (d *Delta) removeEmpty(set *setSub) {
	if set.set.Len() > 0 {
		return
	}
	for _, name := range set.spelled.all() {
		a := set.ref.of(name)
		put(&d.removals, a.key(), removal{ref: a})
	}
}

// sendMember adds to r what is new about a member of a set, and reports whether it fitted.
func (d *Delta) sendMember(r *Response, set *setSub, m cache.Member) bool {
	a := set.ref.of(m.Name)
	sub := d.named.get(a.key())
	if sub != nil {
		m.Err = nil
	}
	form, size := set.form(), 0
	renewed := m.News == cache.Renewed
	if renewed {
		if !d.nacks.standsFor(m.Name) {
			return true // the client has it
		}
		m.News = cache.Changed
	}
	switch { // A client loses a name when no subscription of it has the name any more: see overlap.go.
	case sub != nil && sub.ownsName(set):
		return d.sendNamedMember(r, set, sub, m) // its own subscription sends it
	case d.leavesToOwner(set, a, m):
		return true
	case m.News == cache.Removed:
		d.deferred.forget(m.Name, nil, true)
		put(&d.removals, a.key(), removal{ref: a, by: set, was: m.Resource})
		return true
	case m.News == cache.TTLRenewed && !d.defers:
		form |= cache.Heartbeat
	}
	held := !renewed && d.holds(set, sub, m)
	if held && sub != nil {
		d.takeFromSet(sub)
	}
	if m.News != cache.Changed && form&cache.WithTTL == 0 || held {
		m.News = cache.ErrorOnly
	}
	if m.News == cache.Changed && d.holdsBack(set, &m) {
		m.News = cache.ErrorOnly
	}
	if m.News != cache.ErrorOnly && r.own != nil {
		same, other := r.hasOwn(a.key(), d.mark(m.Resource))
		if other {
			return false // a response can have a resource only once
		}
		if same {
			m.News = cache.ErrorOnly
		}
	}
	if m.News != cache.ErrorOnly {
		size = m.Resource.Size(m.Name, form)
		d.deferred.forget(m.Name, nil, true)
	} else if m.Err != nil && d.mustDefer(r) {
		d.deferLater().addMember(m.Name, m.Err)
		m.Err = nil
	}
	if m.Err != nil {
		size += sizeError(m.Name, m.Err)
	}
	if !r.fits(size, d.Limit) {
		return false
	}
	if m.News != cache.ErrorOnly {
		r.addMember(m.Name, m.Resource, form)
	}
	if m.Err != nil {
		r.addError(wire.DeltaErrors, m.Name, m.Err)
	}
	if m.News == cache.Changed {
		r.noteChanged(m.Resource)
		delete(d.removals, a.key())
		d.endReview(a)
		if sub != nil {
			d.knows(sub, &cache.State{Resource: m.Resource})
			d.takeFromSet(sub)
		}
	}
	if _, back := set.heldBack[m.Name]; !back {
		delete(set.initial, m.Name)
	}
	delete(d.initial, m.Name)
	return true
}

// takeFromSet records that the client has the resource of a name from a set, as if it had been sent that.
func (d *Delta) takeFromSet(sub *nameSub) {
	sub.takeFromSet()
	delete(d.removals, sub.key())
	if sub.state().Status == cache.Absent {
		put(&d.borrowed, sub, true)
	}
}

// holdsBack reports whether a changed member is withheld from the client for now, and records that. There are two reasons:
//
//   - The member is from before the relay was started, and the client has another version, which may be newer. Versions
//     do not show which one is newer.
//   - The member claims what a resource may claim that the client holds, and that the relay does not know: see
//     cache.Resource.Claims. The client would refuse it before the other one is removed. That holds for a member that the
//     client has in another version, too: what that one claims is not known.
func (d *Delta) holdsBack(set *setSub, m *cache.Member) bool {
	if !set.stale && !set.unclear {
		delete(set.heldBack, m.Name)
		return false
	}
	version, has := set.initial[m.Name]
	if !has && (!set.glob() || d.isView(set)) {
		version, has = d.initial[m.Name]
	}
	if back := has && set.stale || set.unclear && len(m.Resource.Claims()) > 0; back {
		put(&set.heldBack, m.Name, struct{}{})
		if has {
			put(&set.initial, m.Name, version)
		}
		return true
	}
	delete(set.heldBack, m.Name)
	return false
}

// isUnclear reports whether it is not known of all that the client holds of a set whether it is gone. It matters only for
// types with claims, and while more of the control plane's first answer may follow.
func (d *Delta) isUnclear(set *setSub) bool {
	if !d.claims || len(set.initial)+len(d.initial) == 0 || !set.set.Answering() {
		return false
	}
	awaited := func(held map[string]string) bool {
		for name := range held {
			if d.namedIn(set, name) == nil && set.set.Awaits(memberKey(name)) {
				return true
			}
		}
		return false
	}
	return awaited(set.initial) || (set.fresh || set.lacks) && !set.glob() && awaited(d.initial)
}

// sendHeldBack adds to r what holdsBack has recorded, once a control plane has answered, and reports whether it fitted.
func (d *Delta) sendHeldBack(r *Response, set *setSub) bool {
	if len(set.heldBack) == 0 || set.stale || set.unclear {
		return true
	}
	for _, name := range slices.Sorted(maps.Keys(set.heldBack)) {
		m := cache.Member{Name: name, Resource: set.set.Member(memberKey(name)), News: cache.Changed}
		if m.Resource != nil && !d.sendMember(r, set, m) {
			return false
		}
		delete(set.heldBack, name)
	}
	return true
}

// sendApart adds to r the members that the client was sent the removal of because others take what they claimed. It
// reports whether none is left, which is not so while a removal has not been sent.
func (d *Delta) sendApart(r *Response, set *setSub) bool {
	if !set.HasApart() {
		return true
	}
	from, to, all := set.set.Return(&set.SetWatch, func(m cache.Member) bool {
		_, removing := d.removals[set.ref.of(m.Name).key()]
		return !removing && d.sendMember(r, set, m)
	})
	d.noteSpan(set, from, to)
	return all
}

// sendNamedMember adds to r a member of a glob that the client also requests by name, if that answers the client's
// request for the glob and was not sent since.
func (d *Delta) sendNamedMember(r *Response, set *setSub, sub *nameSub, m cache.Member) bool {
	st := sub.state()
	if !set.glob() || !set.fresh || d.ownedByAnother(set, sub.ref()) || m.News != cache.Changed || st.Status != cache.Present || set.sentByName[sub] {
		return true
	}
	if version, ok := set.initial[m.Name]; ok && isVersion(version, st.Resource) {
		return true
	}
	size := st.Resource.Size(sub.name(), sub.form())
	if st.Err != nil {
		size += sizeError(sub.name(), st.Err)
	}
	if !r.fits(size, d.Limit) {
		return false
	}
	r.addDelta(sub.name(), st.Resource, sub.form())
	d.knows(sub, &st)
	// For the client, the resource ends an earlier error.
	return st.Err == nil || d.sendError(r, sub, st.Err)
}

// holds reports whether the client has a member's content already.
func (d *Delta) holds(set *setSub, sub *nameSub, m cache.Member) bool {
	if m.News != cache.Changed {
		return false
	}
	if sub != nil {
		st := cache.State{Status: cache.Present, Resource: m.Resource}
		if sub.entry() == nil {
			st.Err = sub.rare().err // that is not over
		}
		return d.held(sub, &st)
	}
	version, ok := set.initial[m.Name]
	if !ok && (set.fresh || set.lacks) && (!set.glob() || d.isView(set)) {
		version, ok = d.initial[m.Name]
	}
	return ok && isVersion(version, m.Resource)
}

// beforeMove records what the client holds of a set that another set will replace: the client is then sent the
// difference.
func (d *Delta) beforeMove(set *setSub) {
	held := map[string]string{}
	if set.fresh {
		// The client may hold these: the other set need not have seen their removal.
		set.set.RecentlyRemoved(func(name, _ string) { held[name] = "" })
	}
	set.set.SentTo(&set.SetWatch, func(name, version string) {
		if d.namedIn(set, name) == nil {
			held[name] = version
		}
	})
	for name, version := range set.initial { // an earlier such move, or stream
		_, back := set.heldBack[name]
		if _, there := held[name]; !there || back {
			held[name] = version
		}
	}
	for name := range set.heldBack {
		if _, has := set.initial[name]; !has {
			delete(held, name) // it was not sent
		}
	}
	set.heldBack = nil
	for key, g := range d.removals {
		if g.by != set || set.ref.locator { // the removal of a variant says which one it is
			continue
		}
		switch sub := d.namedIn(set, g.ref.name); {
		case sub == nil:
			held[g.ref.name] = "" // the client still has it
		case sub.state().Status == cache.Absent:
			sub.MoveToPending()
		default:
			continue // the name's own state does not say that it is gone
		}
		delete(d.removals, key)
	}
	for _, u := range set.reviews { // the client may have dropped it
		if d.namedIn(set, u.name) == nil {
			held[u.name] = ""
		}
	}
	if set.fresh && set.glob() {
		// The client does not state what it holds, and the other set need not have seen these before they are removed.
		set.set.Names(func(name string) {
			if _, there := held[name]; !there && d.initial[name] == "" && d.namedIn(set, name) == nil {
				held[name] = ""
			}
		})
	}
	set.initial = held
}

// noLongerView is for a glob that was a view until it moved. It leaves the names that only a view can have to the other
// sets, or else removes them.
func (d *Delta) noLongerView(set *setSub) {
	names := map[string]review{}
	note := func(u review) {
		if !slices.Contains(d.covering(set.ref.of(u.name)), set) {
			u.ended = true
			names[u.name] = u
		}
	}
	for name := range set.initial {
		note(review{name: name})
	}
	for _, u := range set.reviews {
		note(u)
	}
	for name, u := range names {
		a := set.ref.of(name)
		delete(set.initial, name)
		d.endReviewIn(set, memberKey(name))
		others := d.covering(a)
		switch {
		case d.named.get(a.key()) != nil:
			// Its own subscription sends it.
		case len(others) > 0:
			d.reviewIn(others[0], u)
		default:
			put(&d.removals, a.key(), removal{ref: a, by: set})
		}
	}
}

func (d *Delta) takenOut(*nameSub) {}
