package collections

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// View is what a view is made of.
type View struct {
	// Collections are URLs of globs and list collections. Of two members of one name
	// that of the first counts.
	Collections []urn.URL
	// Rename names the members by the glob that is asked for.
	Rename bool
}

// setNode is a derived set: a view that is asked for as a wildcard or a glob, or a
// glob or wildcard with redirects in it.
type setNode struct {
	topic cache.Key
	*setting
	union *union
	// told says that the set is complete in the cache. From then on only what has
	// changed is written.
	told bool
	// partial says that something of it could not be had, see cache.SetUpdate.
	partial bool
	// due are the keys of members to be written: whether more than the error of it
	// has changed. withheld are those that go, while they may be in what is not known
	// yet.
	due, withheld map[string]bool
}

// newSetting is what a node's sources have in common.
func (r *Resolver) newSetting(k cache.Key) *setting {
	log, lines := r.log.With("name", k.Name, "type_url", k.TypeURL), &r.sets.lines
	if _, isView := r.sets.views[k.Scope.Derived]; isView {
		log, lines = log.With("view", k.Scope.Derived), &setLines{}
	}
	return &setting{Resolver: r, log: log, lines: lines, passes: k.Scope.Derived == cache.Passed, typeURL: k.TypeURL, params: k.Scope.Params}
}

func newSetNode(r *Resolver, k cache.Key) *setNode {
	n := &setNode{topic: k, setting: r.newSetting(k), due: map[string]bool{}, withheld: map[string]bool{}}
	n.setting.node = n
	n.union = newUnion(n.setting, n)
	return n
}

// newResolvedNode is that of a leaf set whose redirects are followed, or of a glob with an
// alternative. Members of the latter are named by the glob, whoever has them and by which
// name: clients see one set.
func newResolvedNode(r *Resolver, k cache.Key) *setNode {
	n := newSetNode(r, k)
	if u, err := urn.ParseURL(k.Name); err == nil && !k.Scope.OldStyle && u.String() != u.Key().Name {
		n.renameTo = u.Key().Name
		n.union.addAll([]urn.URL{u})
		return n
	}
	leaf := k
	leaf.Scope.Derived = ""
	n.union.add(leaf.Name, 0, func(p *part) source { return newGlobSource(n.setting, p, leaf) })
	return n
}

// newViewNode is that of a view's wildcard or glob.
func newViewNode(r *Resolver, k cache.Key, v View) *setNode {
	n := newSetNode(r, k)
	if v.Rename {
		n.renameTo = k.Name
	}
	n.union.addAll(v.Collections)
	return n
}

// addAll adds the collections of a view.
func (u *union) addAll(collections []urn.URL) {
	for i, c := range collections {
		u.add(c.String(), i, func(p *part) source { return u.collection(p, c, nil) })
	}
}

func (n *setNode) key() cache.Key { return n.topic }

// elected implements sink.
func (n *setNode) elected(key string, was, is offer, again bool) {
	if n.told {
		n.due[key] = n.due[key] || again || was.resource != is.resource || is.err == nil
	}
	n.changed[n] = struct{}{}
}

// turned implements sink.
func (n *setNode) turned() { n.changed[n] = struct{}{} }

func (n *setNode) write(u *cache.Update) {
	if !n.told {
		switch is := n.union.condition(); is.status {
		case cache.Requested:
			return
		case cache.Failed:
			u.Sets = append(u.Sets, cache.SetUpdate{Name: n.topic.Name, Err: is.err})
			return
		}
	}
	was := n.partial
	if n.union.open == 0 {
		n.partial = n.union.lacking > 0
	}
	set := cache.SetUpdate{Name: n.topic.Name, Full: !n.told, Partial: n.partial}
	if n.told {
		if !n.busy() {
			for key, content := range n.withheld {
				n.due[key] = n.due[key] || content
			}
			clear(n.withheld)
		}
		for key, content := range n.due {
			delete(n.due, key)
			if gone := n.gone(key); gone && n.busy() {
				n.withheld[key] = content // it may be in what is not answered yet
				continue
			}
			delete(n.withheld, key)
			set.Changes = n.change(set.Changes, key, content)
		}
		n.withholds = len(n.withheld) > 0
	} else {
		set.Changes = make([]cache.Change, 0, len(n.union.members))
		for key := range n.union.members {
			set.Changes = n.change(set.Changes, key, true)
		}
	}
	n.told = true
	if set.Full || len(set.Changes) > 0 || n.partial != was {
		u.Sets = append(u.Sets, set)
	}
}

// change appends what has become of a member. One that cannot be had, or is not known yet,
// stays in the cache as it was, also if that was another entry of a list, or another
// collection's.
func (n *setNode) change(changes []cache.Change, key string, content bool) []cache.Change {
	if n.gone(key) {
		return append(changes, cache.Change{Name: key, Gone: true})
	}
	c := n.union.members[key]
	if c.elected == claim {
		return changes
	}
	change := cache.Change{Name: key, Err: c.elected.err}
	if content {
		change.Resource = c.elected.resource
	}
	return append(changes, change)
}

func (n *setNode) gone(key string) bool {
	c := n.union.members[key]
	return c == nil || c.elected == (offer{})
}

func (n *setNode) refresh() { n.union.refresh() }

func (n *setNode) close() { n.union.close() }
