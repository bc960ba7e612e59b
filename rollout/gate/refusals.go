package gate

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/rollout"
)

// This file handles refused changes. A rollout is refused as a whole, since resources refer to each other. But if the
// rejected responses had nothing new except changes to resources that are already accepted in another version, these
// changes can be set apart: references to the resources lead to the accepted versions. The changes wait for a person,
// like resources that have grown too much, until one of them changes again. The rest is rolled out without them.

// maxSetApart is the largest number of resources that are set apart.
const maxSetApart = 64

// refusal has the items that are set apart together.
type refusal struct{ items []item }

// noteRejected records the new resources of a response that a client has rejected. The caller holds mu.
func (g *gate) noteRejected(hashes []uint64) {
	if hashes == nil || len(g.rejected)+len(hashes) > maxSetApart {
		g.unclear = true
		return
	}
	g.rejected = append(g.rejected, hashes...)
}

// replaced reports whether the source has replaced everything that was new in a response that a client has rejected. What
// it has now is not rejected: the client may not have had it yet. The caller holds mu.
func (g *gate) replaced(hashes []uint64) bool {
	if len(hashes) == 0 {
		return false // it is not known what was new
	}
	for _, c := range g.pending.changes {
		if c.Resource != nil && slices.Contains(hashes, c.Resource.Hash()) {
			return false
		}
	}
	return true
}

// leaveOut removes from the update for the new topics those items that these topics no longer show, although they did
// when the update was divided: they were set apart, or wait. A set without them also loses its version.
func (s *splitting) leaveOut(renewed []item) {
	is := map[item]bool{}
	for _, i := range renewed {
		if c := s.pending.changes[i]; c != nil && !s.pending.shown(i.typeURL, c) {
			is[i] = true
		}
	}
	if len(is) == 0 {
		return
	}
	out := func(set string) func(cache.Change) bool {
		return func(c cache.Change) bool { return is[item{s.in.TypeURL, set, c.Name}] }
	}
	s.toNew.Changes = slices.DeleteFunc(s.toNew.Changes, out(""))
	for i := range s.toNew.Sets {
		set := &s.toNew.Sets[i]
		set.Changes, set.Origin = slices.DeleteFunc(set.Changes, out(set.Name)), nil
	}
}

// setApart makes the resources that clients have rejected wait for a person, if there is something else to roll out.
// It returns their items. The caller holds mu.
func (g *gate) setApart() (items []item) {
	if g.machine.Phase() != rollout.Stopped || g.unclear || len(g.rejected) == 0 || g.pending.nShown < 2 {
		return nil
	}
	there := map[uint64]bool{}
	for _, hash := range g.rejected {
		there[hash] = false
	}
	for i, c := range g.pending.changes {
		if c.removal() || c.waits != "" {
			continue
		}
		if _, rejected := there[c.Resource.Hash()]; !rejected {
			continue
		}
		if !c.had {
			g.unclear = true
			return nil // other new resources may refer to it
		}
		there[c.Resource.Hash()] = true
		items = append(items, i)
	}
	if len(items) > maxSetApart || len(items) == g.pending.nShown {
		return nil
	}
	for _, is := range there {
		if !is {
			return nil // the resource has changed since
		}
	}
	why := g.machine.Status().Reason
	of := &refusal{items}
	for _, i := range items {
		g.pending.update(i, func(c *change) { c.waits, c.refusal = why, of })
	}
	g.rejected = nil
	return append(items, g.pending.takeReleased()...)
}
