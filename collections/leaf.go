package collections

import "github.com/xds-relay/xds-relay/cache"

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
}

// leaf returns that of a key, new if there is none.
func (r *Resolver) leaf(k cache.Key) *leaf {
	l := r.leaves[k]
	if l == nil {
		l = &leaf{resolver: r, key: k, users: map[*follow]struct{}{}}
		l.entry, l.withheld = r.topics.Watch(k, l)
		r.leaves[k] = l
	}
	return l
}

// leave ends a follow's use of a leaf.
func (l *leaf) leave(f *follow) {
	if delete(l.users, f); len(l.users) == 0 {
		l.resolver.topics.Unwatch(l)
		delete(l.resolver.leaves, l.key)
	}
}

// state is what the authority says.
func (l *leaf) state() cache.State {
	st := l.entry.State()
	if l.withheld != nil && st.Resource == l.withheld {
		return cache.State{Status: cache.Requested}
	}
	l.withheld = nil
	return st
}

// refresh has a resource that is not for newcomers asked for anew.
func (l *leaf) refresh() {
	if r := l.entry.State().Resource; r == nil || !r.DoNotCache() {
		return
	}
	l.resolver.topics.Unwatch(l)
	l.entry, l.withheld = l.resolver.topics.Watch(l.key, l)
}

// Changed implements cache.Watcher.
func (l *leaf) Changed() cache.Waker { return l.resolver.mark(l) }

func (l *leaf) queue() *bool { return &l.queued }

func (l *leaf) dirty() {
	for f := range l.users {
		l.resolver.follows[f] = struct{}{}
	}
}
