package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/internal/propagation"
)

// Watcher is notified of changes of the one topic that it watches. It embeds a [Watch].
type Watcher interface {
	// Changed is called with the topic locked: it must not block and must not call the
	// cache. It returns the Waker to wake once the whole update is stored, or nil.
	Changed() Waker
	watch() *Watch
}

// Waker is woken after an update is stored, so that it sees the whole update at once.
type Waker interface {
	// Wake must not block.
	Wake()
}

// Watch is a watcher's registration at its topic. Watchers embed it. The zero value watches
// nothing.
//
// A Watch with a WatchGroup can also watch an entry without a Watcher: see
// [Cache.WatchInGroup]. This saves memory where many clients watch many names.
type Watch struct {
	topic *topic
	// Group, if not nil, is notified of changes. It is set before WatchInGroup.
	Group *WatchGroup
	// Note and Own belong to the watcher. The cache ignores them.
	Note  uint64
	index uint32 // in topic.watchers or topic.groupWatches; guarded by topic.mu
	Own   [4]byte
}

// WatchGroup is notified of the changes of all entries that its Watches watch.
type WatchGroup struct {
	// Changed is called like Watcher.Changed, for the entry of one Watch.
	Changed func(*Watch) Waker
	// Owner is the owner of the group, for Changed.
	Owner any
	// IgnoreHeartbeats: heartbeats do not notify the group. It is set before WatchInGroup.
	IgnoreHeartbeats bool
	// Polls: the group is of one request of a client that polls, and comes again. What it has watched lingers also if there
	// is no answer yet. It is set before WatchInGroup.
	Polls bool
	// Clients is the number of clients that the group is for; 0 is one.
	Clients atomic.Int64
	// nameBytes is the length of all names that the group watches.
	nameBytes atomic.Int64
}

// Watching is a [Watcher], or a *[Watch] with a WatchGroup.
type Watching interface{ watch() *Watch }

func (w *Watch) watch() *Watch { return w }

// Entry returns the watched entry, nil if there is none. Only the goroutine that watches
// and unwatches may call it.
func (w *Watch) Entry() *Entry {
	if w.topic == nil {
		return nil
	}
	return w.topic.entry
}

// Change returns the measured change of which the watcher is being notified, nil if it is not measured.
// Only Changed may call it.
func (w *Watch) Change() *propagation.Change { return w.topic.table.scope.change }

// topic is the common part of entries and sets: the watchers, and the time since when there are
// none.
type topic struct {
	table *table
	key   Key
	entry *Entry // the entry that this is a part of; nil in a set
	// group has the topics that end together when too many linger; nil once this one has
	// ended. Guarded by idle.mu.
	group *groupTopics

	mu sync.Mutex
	// watchers are the watchers without a WatchGroup, groupWatches those with one; both in no
	// order.
	watchers         []Watcher
	groupWatches     []*Watch
	ignoreHeartbeats uint32 // number of groupWatches whose group ignores heartbeats
	// refused is what a client has refused of an entry, 0 for nothing: see Entry.Refuse.
	refused Release
	// idleSince is the time since when the topic has no watcher; zero while it has one.
	idleSince time.Time
	outdated  bool // see Cache.Outdate
	ended     bool // the cache has dropped the topic
	// prefetched: all watchers are Prefetchers. If there are none, the last ones were.
	prefetched bool
	// restated is when something came again with equal content, by uptime.Millis, 0 for never: see Entry.Refuse.
	restated uint32
}

// add begins a watch: the watch of w, or of reg's WatchGroup if it has one. adopted: it is the first
// client's watch of a topic that was only prefetched. Callers hold scopeTopics.mu, so that the topic
// cannot end.
func (t *topic) add(reg *Watch, w Watcher) (wasIdle, adopted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	adopted = t.notePrefetch(w)
	reg.topic = t
	if reg.Group != nil {
		reg.index = uint32(len(t.groupWatches))
		t.groupWatches = append(t.groupWatches, reg)
		if reg.Group.IgnoreHeartbeats {
			t.ignoreHeartbeats++
		}
		reg.Group.nameBytes.Add(int64(len(t.key.Name)))
	} else {
		reg.index = uint32(len(t.watchers))
		t.watchers = append(t.watchers, w)
	}
	wasIdle = !t.idleSince.IsZero()
	t.idleSince = time.Time{}
	return wasIdle, adopted
}

// remove ends a watch, and reports whether it was the last.
func (t *topic) remove(reg *Watch, now time.Time) (last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if reg.Group != nil {
		t.groupWatches = without(t.groupWatches, reg.index)
		if reg.Group.IgnoreHeartbeats {
			t.ignoreHeartbeats--
		}
		reg.Group.nameBytes.Add(-int64(len(t.key.Name)))
	} else {
		t.watchers = without(t.watchers, reg.index)
	}
	reg.topic = nil
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

// notify calls Changed of every watcher, and appends the results to wakers. A heartbeat (beat)
// does not notify groups that ignore heartbeats. The caller holds mu.
func (t *topic) notify(wakers []Waker, beat bool) []Waker {
	if topics := t.table.scope; beat && topics.change != nil {
		change := topics.change
		topics.change = nil
		defer func() { topics.change = change }()
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
