package session

import (
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// Names that several subscriptions of a delta client give: a name itself, a glob
// that it is in, and the wildcard. The first of them that has the resource tells it,
// and it is gone when the last of them has not.

// stateOf is what the client is sent of a name. The control plane says what a name is and
// what a set has on two streams, of which either may be behind: a resource that one of the
// client's sets has is not removed because the name's stream says that it is absent.
func (d *Delta) stateOf(sub *nameSub) cache.State {
	st := sub.state()
	if !d.hasSets() && len(d.lent) == 0 || sub.entry() == nil {
		return st
	}
	_, lent := d.lent[sub]
	if st.Status == cache.Absent {
		set := d.standIn(sub.asks())
		res, _, waits := first(sub.memberKey(), set)
		switch {
		case res != nil && (!set.glob() || set.set.nameOf(res) == sub.name()):
			if !lent {
				d.lend(sub, res)
			}
			return cache.State{Status: cache.Present, Resource: res, Origin: set.set.Origin(), Beats: sub.beats()}
		case waits != nil && lent:
			return cache.State{Status: cache.Requested}
		}
	}
	if lent {
		delete(d.lent, sub)
		d.renewTTL(sub, st.Resource)
	}
	return st
}

// lend notes that the client has what a set gives of a name.
func (d *Delta) lend(sub *nameSub, res *cache.Resource) {
	if d.lent == nil {
		d.lent = map[*nameSub]struct{}{}
	}
	d.lent[sub] = struct{}{}
	d.renewTTL(sub, res)
}

// renewTTL has the client sent a resource with a TTL although it has that content: in the
// client runs the TTL that the resource had on the other stream.
func (d *Delta) renewTTL(sub *nameSub, res *cache.Resource) {
	if d.Form&cache.WithTTL != 0 && res.TTL() > 0 {
		sub.Note = ofNoContent
	}
}

// tellsItself says that a name's own state is what the client is sent of it, and not that of
// a set which has it too. The wildcard belongs to the client's Node: what it has under an
// xdstp name is another thing than the authority's.
func (s *nameSub) tellsItself(set *setSub) bool {
	switch s.state().Status {
	case cache.Present:
		return true
	case cache.Absent:
		return !set.glob() && urn.IsName(s.name())
	case cache.Requested, cache.Failed:
	}
	return false
}

// reviewLent has the names looked at again of which the client has what a set gave: a set
// has ended, or has been answered.
func (d *Delta) reviewLent() {
	for sub := range d.lent {
		sub.MoveToPending()
	}
}

// uncover has a name told as the sets have it.
func (d *Delta) uncover(a asked, ended bool) {
	set := d.globOf(a)
	if wild := d.wildOf(a); wild != nil && (set == nil || !present(set)) {
		set = wild
	}
	if set == nil && len(d.views) > 0 {
		_, set, _ = first(memberKey(a.name), d.covering(a)...)
	}
	if set != nil {
		d.uncoverIn(set, a.name, ended)
	}
}

func (d *Delta) uncoverIn(set *setSub, name string, ended bool) {
	d.note(set, name, ended)
	if present(set) {
		set.MoveToPending() // else that comes when it is
	}
}

// note is uncoverIn for a set that is being told.
func (d *Delta) note(set *setSub, name string, ended bool) {
	if set.uncovered == nil {
		set.uncovered = map[string]uncovered{}
	}
	key := memberKey(name)
	was, there := set.uncovered[key]
	if !there {
		d.uncovered++
	}
	set.uncovered[key] = uncovered{name, ended || was.ended}
}

// settle drops a name from what is to be told so.
func (d *Delta) settle(a asked) {
	if d.uncovered == 0 {
		return
	}
	for _, set := range d.covering(a) {
		d.settleIn(set, memberKey(a.name))
	}
}

func (d *Delta) settleIn(set *setSub, key string) {
	if _, there := set.uncovered[key]; there {
		delete(set.uncovered, key)
		d.uncovered--
	}
}

// contested says that another set may have a member too, and has it told by what
// all of them have.
func (d *Delta) contested(set *setSub, a asked, m cache.Member) bool {
	switch {
	case set.glob() && (m.News != cache.Removed || !d.overlaps(set)) && !d.ownedByAnother(set, a):
		return false
	case !set.glob() && d.owner(a) == nil:
		return false
	}
	if m.News == cache.Changed || m.News == cache.Removed {
		d.note(set, m.Name, false)
	}
	return true
}

// lose has a name of a set that is being told, told as gone, unless another has it.
func (d *Delta) lose(set *setSub, a asked) {
	if set.glob() && d.overlaps(set) {
		d.note(set, a.name, false)
		return
	}
	d.gone[a.key()] = removal{asked: a, by: set}
}

// tellUncovered adds to r what the sets have of the names that are to be told so, as
// far as it fits.
func (d *Delta) tellUncovered(r *Response) {
	for len(d.loose) > 0 && d.tellUncoveredOf(r, d.loose[0]) {
		d.loose = d.loose[1:]
	}
	if len(d.loose) == 0 {
		d.loose = nil
	}
}

func (d *Delta) tellUncoveredOf(r *Response, set *setSub) bool {
	// Some names come back: those of which the set does not know yet.
	return d.tellUncoveredNames(r, set, slices.Sorted(maps.Keys(set.uncovered)))
}

func (d *Delta) tellUncoveredNames(r *Response, set *setSub, keys []string) bool {
	for _, key := range keys {
		u := set.uncovered[key]
		a := set.asked.of(u.name)
		glob := d.owner(a)
		res, by, waits := first(key, d.covering(a)...)
		switch {
		case d.named.get(a.key()) != nil:
			// It tells by itself.
		case !u.ended && glob != nil && (by == glob || !present(glob) && glob.holds(u.name)):
			// So does the glob; or it will, and until then the client keeps what it has.
		case res != nil:
			name := u.name
			if urn.IsName(name) {
				name = by.set.nameOf(res)
			}
			same, other := r.hasOwn(a.of(name).key(), d.mark(res))
			if other || !r.fits(res.Size(name, set.form()), d.Limit) {
				return false
			}
			if !same {
				r.from(by.set.Origin())
				r.AddDelta(name, res, set.form())
			}
			if glob.holds(name) {
				glob.initial[name] = ""
			}
			delete(d.gone, a.key())
			d.settle(a) // in the other set too
		case waits != nil && present(waits): // its first answer is incomplete
			d.settleIn(set, key)
			d.note(waits, u.name, u.ended)
			continue
		case waits != nil && u.ended:
			d.settleIn(set, key)
			d.uncoverIn(waits, u.name, true)
			continue
		default:
			d.gone[a.key()] = removal{asked: a, by: set}
		}
		d.settleIn(set, key)
	}
	return true
}

// overlap returns what the client holds by a set, or may hold, and another one may
// give too, but has not told because the set does.
func (d *Delta) overlap(set *setSub) (held []asked) {
	if set.set == nil || !d.overlaps(set) {
		return nil
	}
	add := func(name, _ string) {
		a := set.asked.of(name)
		if d.named.get(a.key()) == nil && (set.glob() || d.owner(a) != nil) {
			held = append(held, a)
		}
	}
	set.set.Held(&set.SetWatch, add)
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

// handOver has those names of a set that has ended told as what other sets have of
// them: the client does not know whether they have them. held is its overlap, from
// before it ended.
func (d *Delta) handOver(set *setSub, held []asked) {
	for _, u := range set.uncovered {
		d.uncover(set.asked.of(u.name), u.ended)
	}
	d.uncovered -= len(set.uncovered)
	set.uncovered = nil
	for _, a := range held {
		d.uncover(a, true)
	}
}
