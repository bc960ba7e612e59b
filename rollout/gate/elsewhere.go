package gate

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// This file handles resources that are in several topics of a scope: the topic of the name, of a wildcard, and of a
// glob, for different clients. A change that is not accepted in one topic is not accepted in any. So a first answer
// is accepted only if no other topic has the resource in another state.

// topics returns the items that a resource has in all topics that can contain it. The item itself is one of them.
func (i item) topics() [3]item {
	entry, wildcard, glob := i, i, i
	entry.set, wildcard.set = "", cache.Wildcard
	glob.set, _ = urn.GlobOf(i.name)
	return [3]item{entry, wildcard, glob}
}

// elsewhere returns the resource that another topic has accepted, for an item whose topic has no accepted state, if
// some change of the resource is not accepted. If no topic has an accepted resource, the item has no answer until the
// resource is accepted.
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

// someElsewhere reports whether other topics have some members of a first answer in another state, and whether some
// members can be accepted: a set that has members must not be accepted as an empty one.
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

// sameElsewhere returns the item's pending change, or a pending change with the same content from another topic: it
// is already being rolled out.
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

// joinRefusal makes a change wait together with a refusal, if the same change in another topic was set apart.
func (g *gate) joinRefusal(i item, c *change) {
	was := g.sameElsewhere(i, nil, &c.Change)
	if was == nil || was.refusal == nil {
		return
	}
	c.waits, c.refusal = was.waits, was.refusal
	was.refusal.items = append(was.refusal.items, i)
}
