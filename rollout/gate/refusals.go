package gate

import "github.com/xds-relay/xds-relay/rollout"

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
