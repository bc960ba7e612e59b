package gate

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/rollout"
)

// What is refused. A rollout is refused as a whole, since resources refer to each other. But if all that
// was new in the responses that clients have rejected are resources that are accepted in another version,
// these can be set apart: whatever refers to them finds the accepted ones. They wait for a person, as what
// has grown does, until one of them changes; and the rest is rolled out without them.

// maxSetApart is how many resources are set apart at most.
const maxSetApart = 64

// refusal are resources that are set apart together.
type refusal struct{ items []item }

// noteRejected notes what was new in a response that a client has rejected. The caller holds mu.
func (g *gate) noteRejected(hashes []uint64) {
	if hashes == nil || len(g.rejected)+len(hashes) > maxSetApart {
		g.unclear = true
		return
	}
	g.rejected = append(g.rejected, hashes...)
}

// leaveOut takes what was set apart out of what the new topics get of the update: a full state has it once more,
// and a version stands for it, too.
func (s *splitting) leaveOut(apart []item) {
	if len(apart) == 0 {
		return
	}
	is := make(map[item]bool, len(apart))
	for _, i := range apart {
		is[i] = true
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

// setApart has what clients have rejected wait for a person, if there is something else to roll out. It
// returns the items. The caller holds mu.
func (g *gate) setApart() (items []item) {
	if g.machine.Phase() != rollout.Stopped || g.unclear || len(g.rejected) == 0 || g.pending.nShown < 2 {
		return nil
	}
	there := map[uint64]bool{}
	for _, hash := range g.rejected {
		there[hash] = false
	}
	for i, c := range g.pending.changes {
		if !c.shown() {
			continue
		}
		if _, rejected := there[c.Resource.Hash()]; !rejected {
			continue
		}
		if !c.had {
			g.unclear = true
			return nil // others may refer to it
		}
		there[c.Resource.Hash()] = true
		items = append(items, i)
	}
	if len(items) > maxSetApart || len(items) == g.pending.nShown {
		return nil
	}
	for _, is := range there {
		if !is {
			return nil // some of it has changed
		}
	}
	why := g.machine.Status().Reason
	of := &refusal{items}
	for _, i := range items {
		g.pending.update(i, func(c *change) { c.waits, c.refusal = why, of })
	}
	g.rejected = nil
	return items
}
