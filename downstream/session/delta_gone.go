package session

import (
	"maps"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// findRemovals records the removals among what is pending, before any of it is sent.
func (d *Delta) findRemovals(r *Response) {
	for _, sub := range d.pending {
		held := sub.sent() == sentResource || sub.is(mayHold)
		if held && !sub.is(hasEnded) && d.stateOf(sub).Status == cache.Absent {
			d.sendName(r, sub)
		}
	}
	for _, set := range d.pendingSets {
		if set.ended || !present(set) || set.set.Len() == 0 {
			continue // it adds nothing
		}
		set.set.RemovedAhead(&set.SetWatch, func(m cache.Member) { d.sendMember(r, set, m) })
		d.findVanished(set)
	}
}

// roomForRemovals is how many bytes of a response are left for the removals.
func (d *Delta) roomForRemovals() (size int) {
	for _, g := range d.removals {
		size += g.size()
	}
	return min(size, d.Limit/2)
}

// size is an upper bound of what a removal adds to a response, in bytes.
func (g *removal) size() int {
	const overhead = 64
	size := 2*len(g.ref.name) + overhead
	if g.err != nil {
		size += sizeError(g.ref.name, g.err)
	}
	if g.was != nil {
		size += len(g.was.Name()) + len(g.was.Constraints())
	}
	return size
}

// sendRemovals adds to r the removals that it may carry, as far as they fit within limit.
func (d *Delta) sendRemovals(r *Response, may RemovalRule, limit int) {
	if !d.Removing() {
		return
	}
	if len(d.former) > 0 {
		defer d.removeFormer(r, limit)
	}
	// Removals that have to wait are left out here; otherwise they could fill every part that is selected.
	stays := func(key string, g removal) bool {
		if may == RemoveAll {
			return false
		}
		sub := d.named.get(key)
		return d.takesNamed(sub, g) && !sub.goes(may) || may < RemoveUnnamed && g.by != nil
	}
	for more := true; more && d.sendSomeRemovals(r, limit, stays, &more); {
	}
}

// sendSomeRemovals is sendRemovals for a part of many removals, and reports whether it fitted. more reports whether
// there are further removals.
func (d *Delta) sendSomeRemovals(r *Response, limit int, stays func(string, removal) bool, more *bool) (fits bool) {
	var keys []string
	keys, *more = some(d.removals, stays)
	for _, key := range keys {
		sub, g := d.named.get(key), d.removals[key]
		if glob := d.globs[key]; glob != nil && glob.set.Len() > 0 || !d.wants(key, g) {
			delete(d.removals, key) // the glob has members by now, or it has ended
			continue
		}
		name := g.ref.name
		if len(d.aliases[key]) > 0 { // the client still has it by these
			delete(d.removals, key)
			continue
		}
		if !r.fits(g.size(), limit) {
			return false
		}
		d.addRemovalOf(r, sub, &g)
		r.noteGone(g.was)
		switch {
		case sub != nil:
			r.fromRemoved(sub.state().Origin)
		case g.by != nil && g.by.set != nil:
			r.fromRemoved(g.by.set.Origin())
		}
		// To a client that reads the error, NOT_FOUND means a removal too.
		if g.err != nil {
			constraints := ""
			if sub != nil {
				constraints = sub.constraints()
			}
			r.addVariantError(wire.DeltaErrors, name, constraints, g.err)
		}
		delete(d.removals, key)
		delete(d.initial, name)
		if sub != nil {
			sub.setSent(sentAbsent)
			sub.set(mayHold, false)
			sub.setSentErr(markError(g.err))
			sub.has(sub.name())
		}
	}
	return true
}

// waitsForBody reports whether the client takes the absence of a name only from a resource without body. Envoy lets a
// request for an unknown domain wait until a response has a resource whose name or alias is what it requested for the
// domain; a removal ends no wait. Envoy: "Virtual Host Discovery Service (VHDS)", "Subscribing to Resources".
func (d *Delta) waitsForBody(sub *nameSub) bool {
	return xdstype.Of(d.typeURL) == xdstype.VirtualHost && sub != nil && sub.sent() == sentNothing && !d.mayHold(sub) && !sub.byLocator()
}

// some returns keys of a map, sorted, without those that stay: all keys of a small map, and some of a large one. Each
// response takes a part; sorting all keys for each response would cost too much. more reports whether there are others.
func some[V any](m map[string]V, stays func(string, V) bool) (keys []string, more bool) {
	const many = 1024
	for key, v := range m {
		if stays != nil && stays(key, v) {
			continue
		}
		if len(keys) == many {
			more = true
			break
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys, more
}

// addRemovalOf adds a removal to r, in the form in which the client was sent the resource.
func (d *Delta) addRemovalOf(r *Response, sub *nameSub, g *removal) {
	constraints := g.constraints
	switch {
	case sub != nil && sub.byLocator():
		constraints = sub.rare().constraints
	case g.was != nil:
		constraints = g.was.Constraints()
	}
	under := g.ref.of(d.removedUnder(r, sub, g))
	if under.name == g.ref.name && !r.removed[under.key()] && d.waitsForBody(sub) {
		r.addAbsent(under.name)
		put(&r.removed, under.key(), true)
		return
	}
	d.addRemoved(r, under, constraints)
	if under.name != g.ref.name {
		put(&r.removed, under.key(), true)
	}
	delete(d.initial, under.name)
}

// removeFormer adds to r the removals of former names under which nothing is given any more.
func (d *Delta) removeFormer(r *Response, limit int) {
	for _, a := range slices.SortedFunc(maps.Keys(d.former), func(a, b resourceRef) int { return strings.Compare(a.key(), b.key()) }) {
		const overhead = 16
		switch {
		case d.sendsItself(a), slices.ContainsFunc(d.aliases[a.key()], func(s *nameSub) bool { return s.hasAs(a.name) }):
			delete(d.former, a) // that subscription sends it
		case d.given(a, nil):
		case r.fits(len(a.name)+overhead, limit):
			d.addRemoved(r, a, d.former[a])
			delete(d.former, a)
		}
	}
}

// removedUnder returns the name under which the client has the removed resource.
func (d *Delta) removedUnder(r *Response, sub *nameSub, g *removal) string {
	name := ""
	if sub != nil && sub.rare() != nil {
		name = sub.rare().sentAs
	}
	if was := g.was; name == "" && was != nil && was.Alias() && (sub == nil || sub.sent() != sentResource) {
		if _, held := d.initial[was.Name()]; held || r.removed[g.ref.of(was.Name()).key()] {
			name = was.Name()
		}
	}
	switch {
	case name == "":
		return g.ref.name
	case d.given(g.ref.of(name), sub):
		d.noteFormer(g.ref.of(name), g.constraints)
		return g.ref.name
	}
	return name
}

// Removing reports that there are removals to send that did not go with what is new.
func (d *Delta) Removing() bool { return len(d.removals)+len(d.former) > 0 }
