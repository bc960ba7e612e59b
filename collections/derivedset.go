package collections

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// derivedSet is a derived set: a view that is requested as a wildcard or glob, or a glob or
// wildcard with redirects in it.
type derivedSet struct {
	topic cache.Key
	*setContext
	union *union
	// applied: the cache has the complete set. From then on only changes are written.
	applied bool
	// partial: some members are unavailable, see cache.SetUpdate.
	partial bool
	// gaps are where these may be, see cache.SetUpdate.
	gaps []cache.Gap
	// stale: some members are stale, see cache.SetUpdate.
	stale bool
	// changedKeys are the members to write. The value is true if more than the error has changed.
	// withheld are removals that wait for outstanding answers, which may have the member.
	changedKeys, withheld map[string]bool
	// guarded are the keys among them that a glob has removed last: see setContext.ofGlob.
	guarded map[string]struct{}
	// lost are the members among them that are gone, if resources of the type have claims.
	lost map[string]*cache.Resource
}

func newDerivedSet(r *Resolver, k cache.Key) *derivedSet {
	n := &derivedSet{topic: k, setContext: r.newSetContext(k), changedKeys: map[string]bool{}, withheld: map[string]bool{}, guarded: map[string]struct{}{}}
	n.setContext.derived = n
	n.union = newUnion(n.setContext, n)
	n.join()
	return n
}

// newResolvedSet returns a leaf set whose redirects are followed, or a glob with an
// alternative. Members of the latter take their names from the requested glob, whichever
// authority serves them: clients see one set.
func newResolvedSet(r *Resolver, k cache.Key) *derivedSet {
	n := newDerivedSet(r, k)
	if u, err := urn.ParseURL(k.Name); err == nil && !k.Scope.OldStyle && u.String() != u.Key().Name {
		n.renameTo = u.Key().Name
		n.union.addAll([]urn.URL{u})
		return n
	}
	leaf := k
	leaf.Scope.Derived = ""
	n.union.add(leaf.Name, 0, func(p *input) source { return newGlobSource(n.setContext, p, leaf) })
	return n
}

// newViewSet returns a view's wildcard or glob.
func newViewSet(r *Resolver, k cache.Key, v View) *derivedSet {
	n := newDerivedSet(r, k)
	if v.Rename {
		n.renameTo = k.Name
	}
	n.union.addAll(v.Collections)
	return n
}

func (n *derivedSet) key() cache.Key { return n.topic }

// winnerChanged implements sink.
func (n *derivedSet) winnerChanged(key string, was, is candidate, renewed bool) {
	if n.applied {
		n.changedKeys[key] = n.changedKeys[key] || renewed || was.resource != is.resource || is.err == nil
		if delete(n.guarded, key); n.ofGlob && is == (candidate{}) {
			n.guarded[key] = struct{}{}
		}
		n.noteLost(key, was, is)
	}
	n.changed[n] = struct{}{}
}

// noteLost records whether a member is gone.
func (n *derivedSet) noteLost(key string, was, is candidate) {
	switch {
	case is != (candidate{}):
		delete(n.lost, key)
	case was.resource != nil && cache.HasClaims(n.topic.TypeURL):
		if n.lost == nil {
			n.lost = map[string]*cache.Resource{}
		}
		if n.lost[key] == nil {
			n.lost[key] = was.resource
		}
	}
}

// stateChanged implements sink.
func (n *derivedSet) stateChanged() { n.changed[n] = struct{}{} }

func (n *derivedSet) appendTo(u *cache.Update) {
	if !n.applied {
		switch is := n.union.state(); is.status {
		case cache.Requested:
			return
		case cache.Failed:
			u.Sets = append(u.Sets, cache.SetUpdate{Name: n.topic.Name, Err: is.err})
			return
		}
	}
	if n.waitsWithRemovals() {
		n.hasWithheld = true
		return
	}
	wasPartial, wasGaps, wasStale := n.partial, n.gaps, n.stale
	if n.union.unknown == 0 {
		n.partial, n.gaps = n.union.incomplete > 0, n.union.gaps()
	}
	n.stale = n.union.stale > 0
	set := cache.SetUpdate{Name: n.topic.Name, Extent: cache.WholeIf(!n.applied), Partial: n.partial, Gaps: n.gaps, Stale: n.stale, Answer: n.answer, Of: n.of}
	if !n.busy() {
		n.answer, n.of = cache.NoAnswer, 0
	}
	if n.applied {
		if !n.busy() {
			for key, content := range n.withheld {
				n.changedKeys[key] = n.changedKeys[key] || content
			}
			clear(n.withheld)
		}
		replaced := n.letReplacedGo()
		for key := range replaced {
			n.changedKeys[key] = true
		}
		for key, content := range n.changedKeys {
			delete(n.changedKeys, key)
			_, another := replaced[key]
			if n.gone(key) && n.busy() && !another {
				n.withheld[key] = content // an outstanding answer may have it
				continue
			}
			delete(n.withheld, key)
			delete(n.lost, key)
			set.Changes = n.change(set.Changes, key, content)
		}
		n.hasWithheld = len(n.withheld) > 0 || n.answer != cache.NoAnswer
	} else {
		set.Changes = make([]cache.Change, 0, len(n.union.members))
		for key := range n.union.members {
			set.Changes = n.change(set.Changes, key, true)
		}
	}
	if !n.applied {
		n.applied, n.written = true, true
		n.noteBusy()
	}
	if set.Extent.Full() || len(set.Changes) > 0 || n.partial != wasPartial || !slices.Equal(n.gaps, wasGaps) || n.stale != wasStale {
		u.Sets = append(u.Sets, set)
	}
}

// change appends the change of a member. A member that is unavailable or unknown stays in
// the cache unchanged, even if the cached one came from another entry or another collection.
func (n *derivedSet) change(changes []cache.Change, key string, content bool) []cache.Change {
	if n.gone(key) {
		gone := cache.Change{Name: key, Gone: true}
		if _, is := n.guarded[key]; is {
			delete(n.guarded, key)
			gone.Answer = cache.Guarded
		}
		return append(changes, gone)
	}
	c := n.union.members[key]
	if c.winner == pendingCandidate {
		return changes
	}
	change := cache.Change{Name: key, Err: c.winner.err}
	if content {
		change.Resource = c.winner.resource
	}
	return append(changes, change)
}

func (n *derivedSet) gone(key string) bool {
	c := n.union.members[key]
	return c == nil || c.winner == (candidate{})
}

func (n *derivedSet) refresh() { n.union.refresh() }

func (n *derivedSet) refuse(name string, sent uint32) { n.union.refuse(name, sent) }

func (n *derivedSet) close() {
	n.union.close()
	n.leave()
}
