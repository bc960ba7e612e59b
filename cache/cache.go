package cache

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/recent"
)

// Source gives topics their resources. The cache calls its methods with the scope's topics
// locked, in the order in which topics begin and end. That includes a topic that begins again. They
// must not block and must not call the cache: they only record what to do.
type Source interface {
	// Start is called when a topic gets its first watcher.
	Start(Key)
	// Refresh is called when a new watcher must not receive the cached resource
	// (Resource.DoNotCache): the source has to request the topic again.
	Refresh(Key)
	// Stop is called when the cache drops a topic: the topic has had no watcher for the linger time,
	// or too many topics linger.
	Stop(Key)
}

// Options are a Cache's settings.
type Options struct {
	// Linger is how long the source keeps a topic fresh that nobody watches.
	Linger time.Duration
	// IdleEntries bounds the number of topics that linger. Beyond it, the cache drops those
	// that have been idle the longest. At least 1.
	IdleEntries int
	// IdleScopes bounds, in the same way, the number of scopes in which every topic lingers. 0 is
	// no limit.
	IdleScopes int
	// Tombstones bound what glob collections remember of removed members.
	Tombstones Tombstones
	// Changes measures how long changes take to reach clients. If it is nil, nothing is measured.
	Changes *propagation.Tracker
}

// Cache is the shared cache of all authorities. All its methods may be called
// concurrently.
//
// Updates of one authority do not delay clients of another: each [Scope] has its own lock between
// updates and readers (scopeTopics.gate), and Cache.mu is locked only to find a scope.
//
// # The snapshot lock
//
// A client's stream reads several topics, of many names, types and scopes. So does the code that
// derives topics from others. Between BeginRead and EndRead (see [Reader] and [ReadLocks]), the
// cache stores no update of the scopes of these topics. So the reader sees one state:
//
//   - It sees the updates of one call of Apply as a whole or not at all: all entries and sets of one
//     response, with one version of the origin, and all types of a change that spans several.
//   - If it sees an update, it sees all earlier updates, of any type and scope. So a resource is
//     never sent before the resources that it refers to ("make before break").
//   - Its watchers have been notified of all changes before BeginRead (Watcher.Changed), and
//     are notified of none until EndRead.
//
// For that, all of the reader's scopes must be locked at the same time. The order of locking does
// not matter. Without the lock, a reader sees the state of each entry or set by itself, and may see
// only a part of an update.
//
// A reader never waits for one scope while it has locked another. So a long update of one scope
// delays no update of another.
type Cache struct {
	source   Source
	requests Requests
	idle     *idle
	changes  *propagation.Tracker

	// versions counts the new origin versions that updates have brought: see OriginVersion.
	versions atomic.Uint64
	// givenUp counts the topics that the cache has dropped.
	givenUp   atomic.Uint64
	chunks    recent.Keeper // of all sets
	spellings spellings

	mu         sync.RWMutex
	scopes     map[Scope]*scopeTopics
	room       Room // of scopes
	tombstones Tombstones
}

// scopeTopics are the topics of one scope.
type scopeTopics struct {
	scope     Scope
	gate      gate
	chunks    *recent.Keeper // Cache.chunks
	spellings *spellings     // Cache.spellings
	// change measures the update that is being stored, nil if it is not measured. Guarded by
	// gate.topics.
	change *propagation.Change
	// storedAt is when the update began to be stored, by uptime.Millis and not 0. Guarded by gate.topics.
	storedAt uint32

	mu     sync.RWMutex
	tables map[string]*table // by type URL
	room   Room              // of tables
	// ended: the last topic has ended, and the scope is no longer in Cache.scopes.
	ended bool

	missed   missed      // what clients have refused when it had come again
	outdated atomic.Bool // some topics may be outdated: see Cache.Outdate
	// impatient is until when entries do not linger, in Unix nanoseconds: see Cache.DropIdle.
	impatient atomic.Int64
}

// table holds the topics of one type in one scope. Guarded by scopeTopics.mu.
type table struct {
	scope   *scopeTopics
	states  stateCounts
	entries map[string]*Entry
	sets    map[string]*Set

	entriesRoom, setsRoom Room
}

// New returns an empty cache. Close stops its timer.
func New(source Source, o Options) *Cache {
	c := &Cache{source: source, changes: o.Changes, tombstones: o.Tombstones, scopes: map[Scope]*scopeTopics{}}
	c.idle = newIdle(o, c.giveUp)
	return c
}

// Requests returns the client requests whose names are being watched at this moment.
func (c *Cache) Requests() *Requests { return &c.requests }

// Close stops the dropping of idle topics. The cache can still be used.
func (c *Cache) Close() { c.idle.close() }

// GiveUpIdle drops the topics of one idle scope. Of the scopes for which match returns true, it
// chooses the one that has been idle the longest, and returns false if there is none. Each scope
// costs a stream upstream, so a source calls GiveUpIdle when it may open no more streams. match is
// called without a lock; the caller must hold none.
func (c *Cache) GiveUpIdle(match func(Scope) bool) bool { return c.idle.giveUpOldest(match) }

// Watch begins w's watch of the entry under k, and returns the entry. The watcher
// reads the current state itself, and is notified of later changes. withheld, if not nil, is the
// entry's resource, which the watcher must not receive (Resource.DoNotCache). The source requests
// the resource again, and its answer replaces it.
func (c *Cache) Watch(k Key, w Watcher) (e *Entry, withheld *Resource) {
	return c.watchEntry(k, w.watch(), w)
}

// WatchInGroup is like [Cache.Watch], for a [Watch] that has a WatchGroup.
func (c *Cache) WatchInGroup(k Key, w *Watch) (e *Entry, withheld *Resource) {
	return c.watchEntry(k, w, nil)
}

func (c *Cache) watchEntry(k Key, reg *Watch, w Watcher) (e *Entry, withheld *Resource) {
	watch(c, k, reg, w, func(t *table) *topic {
		if e = t.entries[k.Name]; e == nil {
			return nil
		}
		if r := e.State().Resource; r != nil && r.DoNotCache() {
			withheld = r
			c.source.Refresh(k)
		}
		return &e.topic
	}, func(t *table) *topic {
		e = newEntry(t, k)
		t.entries[k.Name] = e
		return &e.topic
	})
	return e, withheld
}

// WatchSet begins w's watch of the set under k, and returns the set. w must
// embed a SetWatch.
func (c *Cache) WatchSet(k Key, w SetWatcher) *Set {
	var s *Set
	watch(c, k, w.watch(), w, func(t *table) *topic {
		if s = t.sets[k.Name]; s == nil {
			return nil
		}
		if s.begin(w) {
			c.source.Refresh(k)
		}
		return &s.topic
	}, func(t *table) *topic {
		s = newSet(t, k, c.tombstonesNow())
		t.sets[k.Name] = s
		return &s.topic
	})
	return s
}

// Stats are what a cache holds at one moment.
type Stats struct {
	Entries, Sets int
	Idle          int // entries and sets that nobody watches
	// GivenUp counts the entries and sets that the cache has dropped since the start.
	GivenUp uint64
}

// Stats counts what the cache holds.
func (c *Cache) Stats() Stats {
	s := Stats{Idle: c.idle.len(), GivenUp: c.givenUp.Load()}
	c.mu.RLock()
	scopes := slices.Collect(maps.Values(c.scopes))
	c.mu.RUnlock()
	for _, topics := range scopes {
		topics.mu.RLock()
		for _, t := range topics.tables {
			s.Entries += len(t.entries)
			s.Sets += len(t.sets)
		}
		topics.mu.RUnlock()
	}
	return s
}

// topics returns the topics of a scope, nil if it has none.
func (c *Cache) topics(scope Scope) *scopeTopics {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.scopes[scope]
}

// HasScope reports whether a scope has a topic, in use or idle.
func (c *Cache) HasScope(scope Scope) bool { return c.topics(scope) != nil }

// makeTopics returns the topics of a scope, and adds the scope if it is new.
func (c *Cache) makeTopics(scope Scope) *scopeTopics {
	c.mu.Lock()
	defer c.mu.Unlock()
	topics := c.scopes[scope]
	if topics == nil {
		topics = &scopeTopics{scope: scope, tables: map[string]*table{}, chunks: &c.chunks, spellings: &c.spellings}
		c.scopes[scope] = topics
	}
	return topics
}

// read calls f with the table of a key, if there is one, while no topic begins or ends in
// its scope.
func (c *Cache) read(k Key, f func(*table)) {
	topics := c.topics(k.Scope)
	if topics == nil {
		return
	}
	topics.mu.RLock()
	defer topics.mu.RUnlock()
	if t := topics.tables[k.TypeURL]; t != nil {
		f(t)
	}
}

// watch finds the topic, or makes it and starts its source.
func watch(c *Cache, k Key, reg *Watch, w Watcher, find func(*table) *topic, create func(*table) *topic) {
	if topics := c.topics(k.Scope); topics != nil {
		topics.mu.RLock()
		if t := topics.tables[k.TypeURL]; t != nil {
			if tp := find(t); tp != nil {
				wasIdle, adopted := tp.add(reg, w)
				if adopted {
					c.adopt(tp)
				}
				c.review(tp)
				topics.mu.RUnlock()
				if wasIdle {
					c.idle.remove(tp)
				}
				return
			}
		}
		topics.mu.RUnlock()
	}

	topics := c.makeTopics(k.Scope)
	topics.mu.Lock()
	for topics.ended {
		topics.mu.Unlock()
		topics = c.makeTopics(k.Scope)
		topics.mu.Lock()
	}
	defer topics.mu.Unlock()
	t := topics.tables[k.TypeURL]
	if t == nil {
		t = &table{scope: topics, entries: map[string]*Entry{}, sets: map[string]*Set{}}
		topics.tables[k.TypeURL] = t
	}
	tp := find(t)
	if tp == nil {
		tp = create(t)
		c.idle.created(tp)
		c.source.Start(k)
	}
	wasIdle, adopted := tp.add(reg, w)
	if adopted {
		c.adopt(tp)
	}
	if wasIdle {
		c.idle.remove(tp)
	}
}

// Unwatch ends w's watch. Until Unwatch returns, Changed may still be called, but not after that.
func (c *Cache) Unwatch(w Watching) {
	reg := w.watch()
	tp, now := reg.topic, time.Now()
	if tp.remove(reg, now) {
		unanswered := tp.entry != nil && tp.entry.Snapshot().isUnanswered()
		c.idle.add(tp, now, c.isEmpty(tp), unanswered && (reg.Group == nil || !reg.Group.Polls))
		if tp.entry != nil && now.UnixNano() < tp.table.scope.impatient.Load() {
			c.giveUp(tp, now)
		}
	}
}

// isEmpty reports whether a topic has no resources.
func (c *Cache) isEmpty(tp *topic) bool {
	if tp.entry != nil {
		return tp.entry.isEmpty()
	}
	empty := true // also if the set has ended in the meantime
	c.read(tp.key, func(t *table) {
		s := t.sets[tp.key.Name]
		empty = s == nil || s.isEmpty()
	})
	return empty
}

// giveUp drops a topic that has been idle since the given time, unless it has been watched again.
func (c *Cache) giveUp(tp *topic, since time.Time) {
	topics := tp.table.scope
	topics.mu.Lock()
	defer topics.mu.Unlock()
	tp.mu.Lock()
	stillIdle := tp.idleSince.Equal(since)
	tp.mu.Unlock()
	if !stillIdle {
		return
	}
	t := topics.tables[tp.key.TypeURL]
	if t == nil {
		return
	}
	switch {
	case t.entries[tp.key.Name] != nil && &t.entries[tp.key.Name].topic == tp:
		tp.endCounting(t.entries[tp.key.Name], nil)
		t.entries = Without(t.entries, &t.entriesRoom, tp.key.Name)
	case t.sets[tp.key.Name] != nil && &t.sets[tp.key.Name].topic == tp:
		tp.endCounting(nil, t.sets[tp.key.Name])
		c.chunks.Forget(t.sets[tp.key.Name])
		t.sets = Without(t.sets, &t.setsRoom, tp.key.Name)
	default:
		return
	}
	c.givenUp.Add(1)
	c.idle.gone(tp)
	c.source.Stop(tp.key) // first: once the scope has ended, another goroutine can begin the topic again
	if len(t.entries)+len(t.sets) == 0 {
		topics.tables = Without(topics.tables, &topics.room, tp.key.TypeURL)
	}
	if len(topics.tables) == 0 {
		topics.ended = true
		c.mu.Lock()
		c.scopes = Without(c.scopes, &c.room, topics.scope)
		c.mu.Unlock()
	}
}
