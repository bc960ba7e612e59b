package cache

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// modelSet is the expected state of a set, and of its watchers.
type modelSet struct {
	c        *Cache
	s        *Set
	members  map[string]uint64 // hash of the content
	ttl      map[string]time.Duration
	errs     map[string]Error
	changed  map[string]int // how often the member has changed
	watchers []*modelWatcher
	updates  int
}

type modelWatcher struct {
	setCounter
	have  map[string]uint64
	taken map[string]int  // as modelSet.changed was
	fresh bool            // nothing has been notified since all was read
	again map[string]bool // read since the watcher began again; nil once it has read all
	ahead int             // modelSet.updates when the watcher read the removals ahead, -1 if it has not
}

// set stores a change, and returns whether watchers have to be notified of it. A heartbeat,
// and getting or losing a TTL, do not change the content.
func (m *modelSet) set(name string, r *Resource) (notify bool) {
	var hash uint64
	var ttl time.Duration
	there := r != nil
	if there {
		hash, ttl = r.Hash(), r.TTL()
	}
	old, was := m.members[name]
	_, failed := m.errs[name]
	delete(m.errs, name)
	alive := m.ttl[name]+ttl > 0
	m.ttl[name] = ttl
	if was == there && old == hash && !(there && failed) {
		return there && alive || !there && failed // its error is over
	}
	if there {
		m.members[name] = hash
	} else {
		delete(m.members, name)
	}
	m.changed[name]++
	return true
}

// fail stores an error of a name, and returns whether watchers have to be notified of it.
func (m *modelSet) fail(name string, err *Error) (notify bool) {
	if m.errs[name] == *err {
		return false
	}
	m.errs[name] = *err
	return true
}

func (m *modelSet) notify(t *rapid.T, changed bool) {
	for _, w := range m.watchers {
		if (w.notified > 0) != changed || w.notified > 1 || w.woken != w.notified {
			t.Fatalf("notified %d times and woken %d times of a change: %v", w.notified, w.woken, changed)
		}
		if w.notified > 0 {
			w.fresh = false
		}
		w.notified, w.woken = 0, 0
	}
}

func (m *modelSet) read(t *rapid.T, w *modelWatcher, n int) {
	all := m.s.Since(&w.SetWatch, func(reported Member) bool {
		if n == 0 {
			return false
		}
		n--
		name := reported.Name
		if reported.Err != nil && *reported.Err != m.errs[name] {
			t.Fatalf("%s: the error %v is reported, and is %v", name, reported.Err, m.errs[name])
		}
		switch reported.News {
		case Removed:
			if w.ahead == m.updates {
				t.Fatalf("%s is reported as removed again", name)
			}
			if _, there := m.members[name]; there {
				t.Fatalf("%s is reported as removed", name)
			}
			delete(w.have, name)
		case Changed:
			if m.changed[name] == w.taken[name] {
				t.Fatalf("%s is reported again without a change", name)
			}
			w.have[name] = reported.Resource.Hash()
			if w.again != nil {
				w.again[name] = true
			}
		case TTLRenewed, TTLChanged:
			if m.changed[name] != w.taken[name] {
				t.Fatalf("%s has changed, and is reported as renewed", name)
			}
			if reported.Resource.TTL() != m.ttl[name] {
				t.Fatalf("%s: TTL %v, want %v", name, reported.Resource.TTL(), m.ttl[name])
			}
		case ErrorOnly:
			if reported.Err == nil {
				t.Fatalf("nothing is reported of %s", name)
			}
			return true // it says nothing of the content
		}
		w.taken[name] = m.changed[name]
		return true
	})
	if all && !maps.Equal(w.have, m.members) {
		t.Fatalf("having read all: %v, want %v", w.have, m.members)
	}
	if all && w.again != nil {
		for name := range m.members {
			if !w.again[name] {
				t.Fatalf("%s is not reported again", name)
			}
		}
		w.again = nil
	}
	w.fresh = all
}

// readAhead reads the removals before the other changes.
func (m *modelSet) readAhead(t *rapid.T, w *modelWatcher) {
	m.s.RemovedAhead(&w.SetWatch, func(reported Member) {
		if _, there := m.members[reported.Name]; there || reported.News != Removed {
			t.Fatalf("%s is reported as removed", reported.Name)
		}
		delete(w.have, reported.Name)
		w.taken[reported.Name] = m.changed[reported.Name]
	})
	for name := range w.have {
		if _, there := m.members[name]; !there {
			t.Fatalf("the removal of %s is not reported ahead", name)
		}
	}
	w.ahead = m.updates
}

// After any sequence of changes and reads, in pieces or whole, each watcher has the set's
// state, or has been notified of the difference.
func TestWatchersHaveWhatTheSetHas(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	rapid.Check(t, func(rt *rapid.T) {
		c, s, _ := newWatchedSet(t)
		full(c, "")
		m := &modelSet{c: c, s: s, members: map[string]uint64{}, ttl: map[string]time.Duration{}, errs: map[string]Error{}, changed: map[string]int{}}
		draw := func(t *rapid.T, what string) (Change, bool) {
			name := rapid.SampledFrom(names).Draw(t, what)
			switch rapid.IntRange(0, 5).Draw(t, "content") {
			case 0, 1:
				return gone(name), false
			case 2:
				return Change{Name: name, Err: unavailable}, false
			default:
				change := put(name, rapid.StringMatching("[xyz]").Draw(t, "letter"))
				change.Resource = change.Resource.WithTTL(time.Duration(rapid.IntRange(0, 2).Draw(t, "ttl")))
				return change, true
			}
		}
		watcher := func(t *rapid.T) *modelWatcher {
			if len(m.watchers) == 0 {
				t.Skip("nobody watches")
			}
			return rapid.SampledFrom(m.watchers).Draw(t, "watcher")
		}
		rt.Repeat(map[string]func(*rapid.T){
			"delta": func(t *rapid.T) {
				m.updates++
				var changes []Change
				changed := false
				for range rapid.IntRange(0, 4).Draw(t, "changes") {
					change, _ := draw(t, "name")
					if change.Err == nil {
						changed = m.set(change.Name, change.Resource) || changed
					} else {
						changed = m.fail(change.Name, change.Err) || changed
					}
					changes = append(changes, change)
				}
				delta(c, changes...)
				m.notify(t, changed)
			},
			"full": func(t *rapid.T) {
				m.updates++
				var changes []Change
				changed := false
				said := map[string]bool{}
				for range rapid.IntRange(0, 7).Draw(t, "members") {
					change, there := draw(t, "name")
					if said[change.Name] || !there && change.Err == nil {
						continue
					}
					said[change.Name] = true
					changes = append(changes, change)
					if there {
						changed = m.set(change.Name, change.Resource) || changed
					} else {
						changed = m.fail(change.Name, change.Err) || changed
					}
				}
				for _, name := range names {
					if !said[name] {
						changed = m.set(name, nil) || changed
					}
				}
				full(c, rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "version"), changes...)
				m.notify(t, changed)
			},
			"sweep": func(t *rapid.T) {
				m.updates++
				s.sweepAt = 0 // as if many had come and gone
				delta(c, put("short-lived", "x"))
				delta(c, gone("short-lived"))
				for _, w := range m.watchers {
					w.notified, w.woken, w.fresh = 0, 0, false
				}
			},
			"watch": func(t *rapid.T) {
				w := &modelWatcher{have: map[string]uint64{}, taken: map[string]int{}, ahead: -1}
				c.WatchSet(testKey(Wildcard), w)
				m.watchers = append(m.watchers, w)
			},
			"unwatch": func(t *rapid.T) {
				w := watcher(t)
				c.Unwatch(w)
				m.watchers = slices.DeleteFunc(m.watchers, func(o *modelWatcher) bool { return o == w })
			},
			"read": func(t *rapid.T) {
				m.read(t, watcher(t), rapid.IntRange(-1, 5).Draw(t, "changes"))
			},
			"read ahead": func(t *rapid.T) {
				m.readAhead(t, watcher(t))
			},
			"restart": func(t *rapid.T) {
				w := watcher(t)
				s.Rewind(&w.SetWatch)
				w.again, w.taken, w.fresh = map[string]bool{}, map[string]int{}, false
			},
			"read full": func(t *rapid.T) {
				w := watcher(t)
				s.Full(&w.SetWatch, 0, nil, func(Member) {}, noLook)
				w.have, w.taken, w.fresh = maps.Clone(m.members), maps.Clone(m.changed), true
				w.again = nil
			},
			"": func(t *rapid.T) {
				if s.Len() != len(m.members) {
					t.Fatalf("%d members, want %d", s.Len(), len(m.members))
				}
				for _, w := range m.watchers {
					if w.fresh && !maps.Equal(w.have, m.members) {
						t.Fatalf("not notified: has %v, want %v", w.have, m.members)
					}
				}
			},
		})
	})
}
