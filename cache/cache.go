package cache

import (
	"sync"
	"time"
)

// Feeder begins and ends the feeding of topics. Its methods are called in the
// order of the topics' lives, with the cache locked: they must not block and
// must not call the cache, only note what is to be done.
type Feeder interface {
	// Start is called on the first interest in a topic.
	Start(Key)
	// Refresh is called when somebody becomes interested to whom what is held must
	// not be given (Resource.DoNotCache): the topic is to be asked for anew.
	Refresh(Key)
	// Stop is called when nobody has been interested for the linger time.
	Stop(Key)
}

// Options are a Cache's settings.
type Options struct {
	// Linger is how long a topic that nobody watches is kept fed and fresh.
	Linger time.Duration
	// IdleEntries bounds the number of topics that linger: with more, those
	// that have been idle the longest are given up at once. At least 1.
	IdleEntries int
	// IdleScopes bounds the number of scopes of which all topics linger, likewise. 0 is
	// no limit.
	IdleScopes int
	// Tombstones bound what glob collections remember of members that are gone.
	Tombstones Tombstones
}

// Cache is the shared cache of all authorities. All its methods may be called
// concurrently.
type Cache struct {
	feeder     Feeder
	idle       *idle
	tombstones Tombstones

	// still is held for writing while an update is stored, and for reading by who
	// needs the states of several topics to be of one moment: see Hold.
	still sync.RWMutex
	// versions counts those that updates have brought: see OriginVersion. Guarded by still.
	versions uint64

	mu     sync.RWMutex
	tables map[tableKey]*table
	room   Room // of tables
	// givenUp counts the topics that have ended.
	givenUp uint64
}

type tableKey struct {
	scope   Scope
	typeURL string
}

// table holds the topics of one type in one scope. Guarded by Cache.mu.
type table struct {
	entries map[string]*Entry
	sets    map[string]*Set

	entriesRoom, setsRoom Room
}

// New makes an empty cache. Close ends its timer.
func New(feeder Feeder, o Options) *Cache {
	c := &Cache{feeder: feeder, tombstones: o.Tombstones, tables: map[tableKey]*table{}}
	c.idle = newIdle(o, c.giveUp)
	return c
}

// Close stops the giving up of idle topics. The cache can still be used.
func (c *Cache) Close() { c.idle.close() }

// Watch begins w's watch of the entry under k, and returns the entry. The state
// at that moment is for the watcher to read; it is told of the changes after.
// withheld, if not nil, is what the entry holds and the watcher must not be given
// (Resource.DoNotCache): it has been asked for anew, and when it has come the
// entry holds another one.
func (c *Cache) Watch(k Key, w Watcher) (e *Entry, withheld *Resource) {
	return c.watchEntry(k, w.watch(), w)
}

// Join is Watch for a Watch that has an Audience.
func (c *Cache) Join(k Key, w *Watch) (e *Entry, withheld *Resource) {
	return c.watchEntry(k, w, nil)
}

func (c *Cache) watchEntry(k Key, place *Watch, w Watcher) (e *Entry, withheld *Resource) {
	watch(c, k, place, w, func(t *table) *topic {
		if e = t.entries[k.Name]; e == nil {
			return nil
		}
		if r := e.State().Resource; r != nil && r.doNotCache {
			withheld = r
			c.feeder.Refresh(k)
		}
		return &e.topic
	}, func(t *table) *topic {
		e = newEntry(k)
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
		if s.join(w) {
			c.feeder.Refresh(k)
		}
		return &s.topic
	}, func(t *table) *topic {
		s = newSet(k, c.tombstones)
		t.sets[k.Name] = s
		return &s.topic
	})
	return s
}

// Hold keeps updates from being stored until Release: all states that are read in
// between are of one moment, and everything that changed before it has been told to
// its watchers. That must be short; Apply and Hold must not be called in it.
func (c *Cache) Hold() { c.still.RLock() }

// Release ends a Hold.
func (c *Cache) Release() { c.still.RUnlock() }

// SetWatcher is a Watcher of a set: one that embeds a [SetWatch].
type SetWatcher interface {
	Watcher
	positions() []uint64
	join(seq uint64)
}

// Stats are what a cache holds at one moment.
type Stats struct {
	Entries, Sets int
	Idle          int // of both: those that nobody watches
	// GivenUp is how many have ended since the start.
	GivenUp uint64
}

// Stats returns what the cache holds.
func (c *Cache) Stats() Stats {
	s := Stats{Idle: c.idle.len()}
	c.mu.RLock()
	defer c.mu.RUnlock()
	s.GivenUp = c.givenUp
	for _, t := range c.tables {
		s.Entries += len(t.entries)
		s.Sets += len(t.sets)
	}
	return s
}

// watch finds the topic, or makes it and starts its feeding.
func watch(c *Cache, k Key, place *Watch, w Watcher, find, create func(*table) *topic) {
	tk := tableKey{k.Scope, k.TypeURL}
	c.mu.RLock()
	if t := c.tables[tk]; t != nil {
		if tp := find(t); tp != nil {
			wasIdle := tp.add(place, w)
			c.mu.RUnlock()
			if wasIdle {
				c.idle.remove(tp)
			}
			return
		}
	}
	c.mu.RUnlock()

	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tables[tk]
	if t == nil {
		t = &table{entries: map[string]*Entry{}, sets: map[string]*Set{}}
		c.tables[tk] = t
	}
	tp := find(t)
	if tp == nil {
		tp = create(t)
		c.idle.created(tp)
		c.feeder.Start(k)
	}
	if tp.add(place, w) {
		c.idle.remove(tp)
	}
}

// Unwatch ends w's watch. Changed may still be called until it returns, not
// after.
func (c *Cache) Unwatch(w Watching) {
	place := w.watch()
	tp, now := place.topic, time.Now()
	if tp.remove(place, now) {
		c.idle.add(tp, now, c.isHollow(tp))
	}
}

// isHollow says that there is nothing in a topic.
func (c *Cache) isHollow(tp *topic) bool {
	if tp.entry != nil {
		return tp.entry.isHollow()
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	t := c.tables[tableKey{tp.key.Scope, tp.key.TypeURL}]
	if t == nil {
		return true // it was given up meanwhile
	}
	s := t.sets[tp.key.Name]
	return s == nil || s.isHollow()
}

// giveUp ends a topic that has been idle since then, unless somebody has
// watched it since.
func (c *Cache) giveUp(tp *topic, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tp.mu.Lock()
	stillIdle := tp.idleSince.Equal(since)
	tp.mu.Unlock()
	if !stillIdle {
		return
	}
	tk := tableKey{tp.key.Scope, tp.key.TypeURL}
	t := c.tables[tk]
	if t == nil {
		return
	}
	switch {
	case t.entries[tp.key.Name] != nil && &t.entries[tp.key.Name].topic == tp:
		t.entries = Without(t.entries, &t.entriesRoom, tp.key.Name)
	case t.sets[tp.key.Name] != nil && &t.sets[tp.key.Name].topic == tp:
		t.sets = Without(t.sets, &t.setsRoom, tp.key.Name)
	default:
		return
	}
	if len(t.entries)+len(t.sets) == 0 {
		c.tables = Without(c.tables, &c.room, tk)
	}
	c.givenUp++
	c.idle.gone(tp)
	c.feeder.Stop(tp.key)
}
