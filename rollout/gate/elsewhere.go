package gate

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// One resource can be in several topics of a scope: of its name, of a wildcard and of a glob, for different
// clients. What is not accepted in one of them is not accepted in any: so a first answer is accepted only if none of
// the others has the resource in another state.

// topics returns what a resource is in all topics that can have it, with the item itself.
func (i item) topics() [3]item {
	entry, wildcard, glob := i, i, i
	entry.set, wildcard.set = "", cache.Wildcard
	glob.set, _ = urn.GlobOf(i.name)
	return [3]item{entry, wildcard, glob}
}

// elsewhere returns what is accepted of an item of whose topic nothing is, if something of the resource is not
// accepted: what another topic has. If that is nothing, the item has no answer until the resource is accepted.
func (g *gate) elsewhere(i item) (has *cache.Resource, known bool) {
	for _, o := range i.topics() {
		if _, late := g.later.changes[o]; !late && g.pending.changes[o] == nil {
			continue
		}
		r, of := g.acceptedItem(o)
		if r != nil {
			return r, true
		}
		known = known || of || o == i
	}
	return nil, known
}

// someElsewhere reports whether other topics have some members of a first answer in another state, and whether
// there is something that can be accepted of it: a set that has members is not accepted as an empty one.
func (s *splitting) someElsewhere(u *cache.SetUpdate) (some bool) {
	if s.whole(s.in.TypeURL) {
		return false
	}
	accepts := false
	for i := range u.Changes {
		has, known := s.elsewhere(item{s.in.TypeURL, u.Name, u.Changes[i].Name})
		some = some || known
		accepts = accepts || has != nil || !known && u.Changes[i].Resource != nil
	}
	return some && accepts
}

// sameElsewhere returns the change of an item, or the one of another topic that has the same content: that is
// what is rolled out.
func (g *gate) sameElsewhere(i item, is *change, c *cache.Change) *change {
	if is != nil {
		return is
	}
	for _, o := range i.topics() {
		if was := g.pending.changes[o]; was != nil && same(was.Resource, c.Resource) {
			return was
		}
	}
	return nil
}

// joinRefusal has a change wait with what was set apart, if that is the same in another topic.
func (g *gate) joinRefusal(i item, c *change) {
	was := g.sameElsewhere(i, nil, &c.Change)
	if was == nil || was.refusal == nil {
		return
	}
	c.waits, c.refusal = was.waits, was.refusal
	was.refusal.items = append(was.refusal.items, i)
}
