package session

import (
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/xdstype"
)

// What clients are not told because an authority is silent or cannot be reached. xDS
// has no word for that, and clients take what comes close to it for an answer:
//
//   - Envoy hands a delta response without resources and without removed_resources to
//     all its wildcard subscriptions of the type, as an empty update, which ends their
//     initial fetch. So there is none as long as a wildcard or glob has no answer, and
//     what there is to say but resources and removals waits.
//   - A SotW state in which something is missing deletes that, and one without any
//     resource starts a client with nothing.

// unsaid is what waits until a response has something in it, or until no set is without
// an answer. Delta.
type unsaid struct {
	// names, by the keys of their subscriptions, cannot be had, or were not answered; sets
	// cannot be had; members, by their names, could not be had anew.
	names   map[string]struct{}
	sets    map[*setSub]struct{}
	members map[string]*cache.Error
}

func (u *unsaid) empty() bool { return u == nil || len(u.names)+len(u.sets)+len(u.members) == 0 }

// later returns what waits, to which something is to be added.
func (d *Delta) later() *unsaid {
	if d.unsaid == nil {
		d.unsaid = &unsaid{}
	}
	return d.unsaid
}

// forget drops what waits of a subscription that has ended, or, if member, of a member
// of which something else was said.
func (u *unsaid) forget(key string, set *setSub, member bool) {
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

func (u *unsaid) addName(sub *nameSub) {
	if u.names == nil {
		u.names = map[string]struct{}{}
	}
	u.names[sub.key()] = struct{}{}
}

func (u *unsaid) addSet(set *setSub) {
	if u.sets == nil {
		u.sets = map[*setSub]struct{}{}
	}
	u.sets[set] = struct{}{}
}

// maxUnsaidMembers bounds the members, of which a control plane may have any number.
const maxUnsaidMembers = 1000

func (u *unsaid) addMember(name string, err *cache.Error) {
	if len(u.members) == maxUnsaidMembers {
		return
	}
	if u.members == nil {
		u.members = map[string]*cache.Error{}
	}
	u.members[name] = err
}

// hasOpenSet says that a wildcard or a glob of the client has had no answer.
func (d *Delta) hasOpenSet() bool { return d.freshSets+len(d.refusedGlobs) > 0 }

// noteRefusedGlob notes a glob that the relay refuses, and of which the client may hold
// members. An error alone would be taken for an empty answer.
func (d *Delta) noteRefusedGlob(key string) {
	if d.refusedGlobs == nil {
		d.refusedGlobs = map[string]struct{}{}
	}
	d.refusedGlobs[key] = struct{}{}
}

// waits says that what r has in it would be taken for an empty answer to a set.
func (d *Delta) waits(r *Response) bool {
	return d.quiet && !r.substantial && !d.errorsAlone
}

// sayUnsaid adds to r what has waited, if it need not wait any longer.
func (d *Delta) sayUnsaid(r *Response) {
	if d.unsaid.empty() || !r.substantial && d.hasOpenSet() {
		return
	}
	u := d.unsaid
	d.unsaid, d.quiet = nil, false
	for _, key := range slices.Sorted(maps.Keys(u.names)) {
		if sub := d.named.get(key); sub != nil && !d.tell(r, sub) {
			sub.MoveToPending()
		}
	}
	for set := range u.sets {
		if status, err := set.status(); !set.ended && status == cache.Failed && !d.tellSetError(r, set, err) {
			set.MoveToPending()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(u.members)) {
		if err := u.members[name]; r.fits(sizeError(name, err), d.Limit) {
			r.addError(fieldDeltaErrors, name, err)
		} else {
			d.later().addMember(name, err)
		}
	}
}

// mayHold says that the client may hold a name's resource, of which it was told nothing
// on this stream: it said so, or has it by a set, or will be told so.
func (d *Delta) mayHold(sub *nameSub) bool {
	if _, held := d.initial[sub.name()]; held || sub.is(mayHold) {
		return true
	}
	a := sub.asks()
	for _, set := range d.covering(a) {
		if set.set == nil {
			continue
		}
		if set.holds(sub.name()) || set.set.Member(memberKey(sub.name())) != nil {
			return true
		}
	}
	return false
}

// perceived is what a name's state is to a client that may take silence for an answer:
// one that never had the resource. A relay passes the silence on to its own clients, who
// may have it.
// xDS: "Knowing When a Requested Resource Does Not Exist".
func (s *SotW) perceived(sub *nameSub, st cache.State) cache.State {
	if st.Status != cache.Failed || !st.Err.Silent || s.Relay || sub.is(mayHold) || sub.told() == toldResource {
		return st
	}
	return cache.State{Status: cache.Absent}
}

// withheldPart says that a name's resource is put together from what could be had, and
// that the client may hold more.
func withheldPart(sub *nameSub, st *cache.State, held bool) bool {
	return held && st.Status == cache.Present && st.Partial && sub.told() != toldResource
}

// nothingKnown says that a full state would have no resource in it, and that this is not
// what the authority says.
func (s *SotW) nothingKnown() bool {
	if s.held > 0 || s.errorsAlone {
		return false // what is missing is gone; or the client knows that it need not be
	}
	unknown, missingIsNoAnswer := false, !s.hasSets() && !xdstype.Of(s.typeURL).FullState
	for set := range s.sets() {
		status, err := set.status()
		switch {
		case set.told, status == cache.Present && set.set.Len() > 0:
			return false
		case status == cache.Failed && s.once && !err.Transient():
			// There is no better answer to a request that is answered once.
		case status != cache.Present, set.set.Lacks(anyError):
			unknown = true
		}
	}
	for sub := range s.named.all() {
		switch st := sub.state(); {
		case st.Status == cache.Present:
			return false
		case missingIsNoAnswer && s.perceived(sub, st).Status == cache.Absent:
			// That it is missing says nothing; it is told by an error.
		case st.Status == cache.Requested, st.Status == cache.Failed && st.Err.Transient():
			unknown = true
		}
	}
	return unknown
}

func anyError(*cache.Error) bool { return true }

// lacksHeld says that something may be missing in a set only because it could not be had,
// or has not come yet, which the client may hold from an earlier stream.
func (s *SotW) lacksHeld(set *setSub) bool {
	resumed := set.mayHold || s.resumed != "" && s.last.nonce == ""
	return resumed && !set.told && (set.set.Incomplete() || set.set.Lacks((*cache.Error).Open))
}
