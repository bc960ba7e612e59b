package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/propagation"
)

// Watcher is notified of changes of the one topic that it watches. It embeds a [Watch].
type Watcher interface {
	// Changed is called with the topic locked: it must not block and must not call the
	// cache. It returns whom to wake once the whole update is stored, nil for nobody.
	Changed() Waker
	watch() *Watch
}

// Waker is woken after the whole of an update is stored, so that it sees all of it at once.
type Waker interface {
	// Wake must not block.
	Wake()
}

// Watch is a watcher's registration at its topic. Watchers embed it. The zero value watches
// nothing.
//
// Where there are very many watchers of entries, as there are of the names of many
// clients, one can be a Watch and nothing else: one that has a WatchGroup, for
// [Cache.WatchInGroup].
type Watch struct {
	topic *topic
	// Group, if not nil, is notified of changes. It is set before WatchInGroup.
	Group *WatchGroup
	// Note and Own are for the owner. The cache ignores them.
	Note  uint64
	index uint32 // in topic.watchers or topic.groupWatches; guarded by topic.mu
	Own   [4]byte
}

// WatchGroup is what many a Watch belongs to: it is notified of the changes of all that they
// watch.
type WatchGroup struct {
	// Changed is as Watcher.Changed, for one of them.
	Changed func(*Watch) Waker
	// Owner is the owner of the group, for Changed.
	Owner any
	// IgnoreHeartbeats: a heartbeat is no change for them. It is set before WatchInGroup.
	IgnoreHeartbeats bool
	// Clients is the number of clients that the group is for; 0 is one.
	Clients atomic.Int64
	// nameBytes is the length of all names that the group watches.
	nameBytes atomic.Int64
}

// Watching is a [Watcher], or a *[Watch] with a WatchGroup.
type Watching interface{ watch() *Watch }

func (w *Watch) watch() *Watch { return w }

// Entry returns the entry that is watched, nil if there is none. Only the goroutine that watches
// and unwatches may call it.
func (w *Watch) Entry() *Entry {
	if w.topic == nil {
		return nil
	}
	return w.topic.entry
}

// Change is the change that the watcher is notified of, nil if it is not measured. It may be called in
// Changed only.
func (w *Watch) Change() *propagation.Change { return w.topic.table.of.change }

// topic is what entries and sets have in common: the watchers, and the time since which there
// are none.
type topic struct {
	table *table
	key   Key
	entry *Entry // that this is part of; nil in a set
	// group has the topics that end together when too many linger; nil once this one has
	// ended. Guarded by idle.mu.
	group *groupTopics

	mu sync.Mutex
	// watchers and groupWatches are those without and with a WatchGroup, in no order.
	watchers         []Watcher
	groupWatches     []*Watch
	ignoreHeartbeats uint32 // of groupWatches
	// idleSince is the time since which nobody has watched; zero while
	// somebody does.
	idleSince time.Time
	outdated  bool // see Cache.Outdate
	ended     bool // the cache does not have it any more
	// prefetched: all who watch are Prefetchers, and so were the last who watched, if nobody does.
	prefetched bool
}

// add begins a watch, that of w unless place has a WatchGroup. adopted says that it is the first client's
// of a topic that was only prefetched. Callers hold scopeTopics.mu, so that the topic cannot end.
func (t *topic) add(place *Watch, w Watcher) (wasIdle, adopted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	adopted = t.notePrefetch(w)
	place.topic = t
	if place.Group != nil {
		place.index = uint32(len(t.groupWatches))
		t.groupWatches = append(t.groupWatches, place)
		if place.Group.IgnoreHeartbeats {
			t.ignoreHeartbeats++
		}
		place.Group.nameBytes.Add(int64(len(t.key.Name)))
	} else {
		place.index = uint32(len(t.watchers))
		t.watchers = append(t.watchers, w)
	}
	wasIdle = !t.idleSince.IsZero()
	t.idleSince = time.Time{}
	return wasIdle, adopted
}

// remove ends a watch, and reports whether it was the last.
func (t *topic) remove(place *Watch, now time.Time) (last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if place.Group != nil {
		t.groupWatches = without(t.groupWatches, place.index)
		if place.Group.IgnoreHeartbeats {
			t.ignoreHeartbeats--
		}
		place.Group.nameBytes.Add(-int64(len(t.key.Name)))
	} else {
		t.watchers = without(t.watchers, place.index)
	}
	place.topic = nil
	if len(t.watchers)+len(t.groupWatches) > 0 {
		return false
	}
	t.idleSince = now
	return true
}

// without removes one watch from a list.
func without[W Watching](list []W, index uint32) []W {
	end := len(list) - 1
	list[index] = list[end]
	list[index].watch().index = index
	clear(list[end:])
	if end == 0 {
		return nil
	}
	return fitted(list[:end])
}

// notify marks every watcher and appends to wakers those to be woken. A heartbeat marks only
// those for whom it is a change. The caller holds mu.
func (t *topic) notify(wakers []Waker, beat bool) []Waker {
	if of := t.table.of; beat && of.change != nil {
		change := of.change
		of.change = nil
		defer func() { of.change = change }()
	}
	for _, w := range t.watchers {
		if waker := w.Changed(); waker != nil {
			wakers = append(wakers, waker)
		}
	}
	if beat && int(t.ignoreHeartbeats) == len(t.groupWatches) {
		return wakers
	}
	for _, w := range t.groupWatches {
		if beat && w.Group.IgnoreHeartbeats {
			continue
		}
		if waker := w.Group.Changed(w); waker != nil {
			wakers = append(wakers, waker)
		}
	}
	return wakers
}
