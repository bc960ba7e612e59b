package collections

import (
	"github.com/xds-relay/xds-relay/cache"
)

// leaf returns the leaf of a key, and whether it was created now.
func (r *Resolver) leaf(k cache.Key) (_ *leaf, isNew bool) {
	if l := r.leaves[k]; l != nil {
		return l, false
	}
	l := &leaf{resolver: r, key: k, users: map[*lookup]struct{}{}}
	l.entry, l.withheld = r.topics.Watch(k, l)
	r.leaves[k] = l
	return l, true
}

// release ends a lookup's use of a leaf.
func (l *leaf) release(f *lookup) {
	if delete(l.users, f); len(l.users) == 0 {
		l.resolver.topics.Unwatch(l)
		r := l.resolver
		r.leaves = cache.Without(r.leaves, &r.rooms.leaves, l.key)
	}
}

// state returns the state of the entry.
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

// refresh requests the resource again if it must not be served from the cache. Until the
// answer comes, new subscribers wait; clients that have the old resource keep it.
func (l *leaf) refresh() {
	if r := l.entry.State().Resource; r == nil || !r.DoNotCache() || r == l.withheld {
		return
	}
	l.resolver.topics.Unwatch(l)
	l.entry, l.withheld = l.resolver.topics.Watch(l.key, l)
}

// list returns the entries of the list collection that was found.
func (r *result) list() *list {
	l := r.leaf
	if l.parsedFrom == r.Resource {
		return l.parsed
	}
	before := l.parsed
	if before == nil {
		before = &list{}
	}
	l.resolver.withoutHolds(r.Resource.ValueSize(), func() { l.parsed = parseListAfter(r.Resource, before) })
	l.parsed.authority, l.parsedFrom = l.key.Scope.Authority, r.Resource
	return l.parsed
}

// inline returns, as a resource, a named inline entry of the list collection that is not a
// redirect.
func (l *leaf) inline(e *listEntry) *cache.Resource {
	if e.resourceMade == nil {
		name := entryName(l.key.Name, e.name)
		r := e.resource(name)
		e.resourceMade = r.Renamed(name, "", r.Version())
	}
	return e.resourceMade
}

// inlineRedirect returns, as a resource, a named inline entry that is a redirect.
func (l *leaf) inlineRedirect(e *listEntry) *cache.Resource {
	if e.resourceMade == nil {
		e.resourceMade = e.redirect(entryName(l.key.Name, e.name))
	}
	return e.resourceMade
}

// Changed implements cache.Watcher.
func (l *leaf) Changed() cache.Waker { return l.resolver.enqueue(l, &l.queued) }

// process schedules the lookups that use the leaf.
func (l *leaf) process(*Resolver) {
	l.queued.Store(false)
	for f := range l.users {
		l.resolver.markDirty(f)
	}
}
