package collections

import (
	"github.com/xds-relay/xds-relay/cache"
)

// leaf is a leaf entry that follows use. There is one for each, whatever their
// number.
type leaf struct {
	cache.Watch
	resolver *Resolver
	key      cache.Key
	entry    *cache.Entry
	withheld *cache.Resource // see Topics.Watch
	users    map[*follow]struct{}
	queued   bool // guarded by Resolver.inbox

	// listed is what listOf was taken apart to, for all who use it.
	listed *list
	listOf *cache.Resource
}

// leaf returns that of a key, and whether it is new.
func (r *Resolver) leaf(k cache.Key) (_ *leaf, isNew bool) {
	if l := r.leaves[k]; l != nil {
		return l, false
	}
	l := &leaf{resolver: r, key: k, users: map[*follow]struct{}{}}
	l.entry, l.withheld = r.topics.Watch(k, l)
	r.leaves[k] = l
	return l, true
}

// leave ends a follow's use of a leaf.
func (l *leaf) leave(f *follow) {
	if delete(l.users, f); len(l.users) == 0 {
		l.resolver.topics.Unwatch(l)
		r := l.resolver
		r.leaves = cache.Without(r.leaves, &r.rooms.leaves, l.key)
	}
}

// state is what the authority says.
func (l *leaf) state() cache.State {
	st := l.entry.State()
	switch {
	case l.withheld == nil:
	case st.Resource != l.withheld:
		l.withheld = nil
	case st.Err != nil:
		return cache.State{Status: cache.Failed, Err: st.Err}
	default:
		return cache.State{Status: cache.Requested}
	}
	return st
}

// refresh has a resource that is not for newcomers asked for anew. Until it comes,
// nobody is given what there was: those who have it keep it.
func (l *leaf) refresh() {
	if r := l.entry.State().Resource; r == nil || !r.DoNotCache() || r == l.withheld {
		return
	}
	l.resolver.topics.Unwatch(l)
	l.entry, l.withheld = l.resolver.topics.Watch(l.key, l)
}

// list returns the list collection that was found.
func (r *result) list() *list {
	l := r.leaf
	if l.listOf == r.Resource {
		return l.listed
	}
	before := l.listed
	if before == nil {
		before = &list{}
	}
	l.resolver.aside(len(r.Resource.Value()), func() { l.listed = parseListAfter(r.Resource, before) })
	l.listed.authority, l.listOf = l.key.Scope.Authority, r.Resource
	return l.listed
}

// inline returns an inline entry of the list collection, which has a name and is no
// redirect, as a resource.
func (l *leaf) inline(e *listEntry) *cache.Resource {
	if e.made == nil {
		name := entryName(l.key.Name, e.name)
		r := e.resource(name)
		e.made = r.Renamed(name, r.Version()) // inside too
	}
	return e.made
}

// inlineRedirect returns an inline entry that has a name and is a redirect, as a resource.
func (l *leaf) inlineRedirect(e *listEntry) *cache.Resource {
	if e.made == nil {
		e.made = e.redirect(entryName(l.key.Name, e.name))
	}
	return e.made
}

// Changed implements cache.Watcher.
func (l *leaf) Changed() cache.Waker { return l.resolver.mark(l) }

func (l *leaf) queue() *bool { return &l.queued }

func (l *leaf) dirty() {
	for f := range l.users {
		l.resolver.dirty(f)
	}
}
