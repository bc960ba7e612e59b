package gate

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/rollout"
)

// This file has the operations for operators: the state of rollouts, and commands.

// Which selects rollouts. An empty Authority selects any, and AnyPartition any partition.
type Which struct {
	Authority, Partition string
	AnyPartition         bool
}

func (w Which) selects(scope cache.Scope) bool {
	return (w.Authority == "" || w.Authority == scope.Authority) && (w.AnyPartition || w.Partition == scope.Partition)
}

// frozen is a call of Freeze or Thaw, kept for scopes that begin later.
type frozen struct {
	which Which
	is    bool
}

// maxFrozen bounds the number of calls that are kept.
const maxFrozen = 1024

// startsFrozen reports whether a new scope is frozen. The caller holds mu.
func (c *Controller) startsFrozen(scope cache.Scope) bool {
	for _, f := range slices.Backward(c.frozen) {
		if f.which.selects(scope) {
			return f.is
		}
	}
	return false
}

// Status describes the rollout of one scope.
type Status struct {
	Authority, Partition string
	rollout.Status
	// Ends is when the soak of the step ends. It is zero unless the rollout is Rolling.
	Ends time.Time
	// Changes are some of the changes that are not accepted, and Total is their number.
	Changes []Change
	Total   int
}

// Change is one resource that is not accepted.
type Change struct {
	TypeURL, Name string
	// What is "added", "changed" or "removed".
	What string
	// Waits is why a person has to approve the change, "" if no approval is needed.
	Waits string
}

// maxChanges bounds Status.Changes.
const maxChanges = 100

// selected returns the gates that w selects.
func (c *Controller) selected(w Which) (gates []*gate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for scope, g := range c.gates {
		if w.selects(scope) && !g.ended.Load() {
			gates = append(gates, g)
		}
	}
	slices.SortFunc(gates, func(a, b *gate) int {
		return cmp.Or(cmp.Compare(a.scope.Authority, b.scope.Authority), cmp.Compare(a.scope.Partition, b.scope.Partition), cmp.Compare(a.scope.Params, b.scope.Params))
	})
	return gates
}

// Status returns the selected rollouts, sorted.
func (c *Controller) Status(w Which) []Status {
	var all []Status
	for _, g := range c.selected(w) {
		all = append(all, g.status())
	}
	return all
}

func (g *gate) status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Status{Authority: g.scope.Authority, Partition: g.scope.Partition, Status: g.machine.Status()}
	if s.Phase == rollout.Rolling {
		s.Ends = g.began.Add(time.Duration(s.SoakEnds))
	}
	seen := map[Change]bool{}
	add := func(i item, removed, had bool, waits string) {
		change := Change{TypeURL: i.typeURL, Name: i.name, What: "changed", Waits: waits}
		switch {
		case removed:
			change.What = "removed"
		case !had:
			change.What = "added"
		}
		if !seen[change] { // a name can be an entry, and a member of several sets
			seen[change] = true
			s.Changes = append(s.Changes, change)
		}
	}
	for i, c := range g.pending.changes {
		add(i, c.removal(), c.had, c.waits)
	}
	for i, c := range g.later.changes {
		if g.pending.changes[i] == nil {
			had, _ := g.acceptedItem(i)
			add(i, c.Resource == nil, had != nil, "")
		}
	}
	slices.SortFunc(s.Changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.TypeURL, b.TypeURL), cmp.Compare(a.Name, b.Name))
	})
	s.Total = len(s.Changes)
	s.Changes = s.Changes[:min(s.Total, maxChanges)]
	return s
}

// each calls do for the selected gates, and returns how many calls returned true.
func (c *Controller) each(w Which, do func(*gate) bool) (n int) {
	for _, g := range c.selected(w) {
		unlock := g.lock()
		if do(g) {
			n++
		}
		unlock()
		g.inbox.Wake()
	}
	return n
}

// Approve gives all clients at once the changes that are not accepted. It returns how many rollouts had such changes.
func (c *Controller) Approve(w Which) int {
	return c.each(w, func(g *gate) bool {
		g.endForLater()
		if len(g.pending.changes) == 0 {
			return false
		}
		g.all = true
		if !g.machine.Approve(g.now()) {
			g.accept(true) // all pending changes wait for a person
			g.all = false
		}
		return true
	})
}

// Reject rolls back and refuses the changes that are being rolled out, together with those that wait for the next
// rollout. The relay sends the control plane a NACK with words as its message. It returns how many rollouts had
// changes to refuse.
func (c *Controller) Reject(w Which, words string) int {
	return c.each(w, func(g *gate) bool {
		g.endForLater()
		return g.machine.Reject(g.now(), words)
	})
}

// Trust makes the rejections of all that are passed over count again. It returns how many rollouts had passed over
// some.
func (c *Controller) Trust(w Which) int {
	return c.each(w, func(g *gate) bool { return g.machine.Trust(g.now()) > 0 })
}

// Freeze stops the progress of rollouts until Thaw, also for scopes that begin later. It returns how many rollouts w
// selects.
func (c *Controller) Freeze(w Which) int {
	c.freeze(w, true)
	return c.each(w, func(g *gate) bool {
		g.machine.Freeze(g.now())
		return true
	})
}

// Thaw ends Freeze. It returns how many rollouts w selects.
func (c *Controller) Thaw(w Which) int {
	c.freeze(w, false)
	return c.each(w, func(g *gate) bool {
		g.thaw()
		return true
	})
}

func (c *Controller) freeze(w Which, is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = slices.DeleteFunc(c.frozen, func(f frozen) bool { return f.which == w })
	if len(c.frozen) < maxFrozen {
		c.frozen = append(c.frozen, frozen{w, is})
	}
}

// thaw ends a freeze. Changes that arrived during the freeze join the rollout if it is in its first step. The caller
// holds mu.
func (g *gate) thaw() {
	g.machine.Thaw(g.now())
	g.goOn()
}

// Added calls yield with the members of a set that the source has added, and that are not accepted yet.
func (c *Controller) Added(k cache.Key, yield func(name string)) {
	c.mu.Lock()
	g := c.gates[k.Scope]
	c.mu.Unlock()
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, c := range g.pending.sets[topicName{k.TypeURL, k.Name}] {
		if !c.had {
			yield(name)
		}
	}
	if g.later.types[k.TypeURL] == 0 {
		return
	}
	for i := range g.later.changes {
		if i.typeURL == k.TypeURL && i.set == k.Name {
			if has, _ := g.acceptedItem(i); has == nil {
				yield(i.name)
			}
		}
	}
}

// Newest returns the newest resource of a name if it is not accepted yet: nil if the source has removed the resource.
// ok is false if the accepted state is the newest. The scope of k is the accepted one.
func (c *Controller) Newest(k cache.Key) (newest *cache.Resource, ok bool) {
	c.mu.Lock()
	g := c.gates[k.Scope]
	c.mu.Unlock()
	if g == nil {
		return nil, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	look := func(i item) bool {
		if later, is := g.later.changes[i]; is {
			newest, ok = later.Resource, true
		} else if now := g.pending.changes[i]; now != nil {
			newest, ok = now.Resource, true
		}
		return ok
	}
	if look(item{typeURL: k.TypeURL, name: k.Name}) || look(item{typeURL: k.TypeURL, set: cache.Wildcard, name: k.Name}) || k.Scope.OldStyle {
		return newest, ok
	}
	// A glob's name is the resource's directory, with the resource's parameters.
	name, rest, _ := strings.Cut(k.Name, "?")
	set := name[:strings.LastIndexByte(name, '/')+1] + "*"
	if rest != "" {
		set += "?" + rest
	}
	look(item{typeURL: k.TypeURL, set: set, name: k.Name})
	return newest, ok
}
