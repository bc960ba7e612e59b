package cache

import (
	"maps"
	"slices"
	"sync"

	"github.com/xds-relay/xds-relay/cache/internal/members"
	"github.com/xds-relay/xds-relay/cache/resource"
	"github.com/xds-relay/xds-relay/urn"
)

// How the resources in the cache spell the names to which they refer: see resource.Spelling. What the cache drops is
// forgotten.

// SpellingWatcher is notified of changes of Cache.Spelling.
type SpellingWatcher interface {
	// Respelled must not block and must not call the cache. It may be called just after UnwatchSpelling, too.
	Respelled()
}

// spellings has the names that some resource spells in its own way, and those that are watched.
type spellings struct {
	mu    sync.Mutex
	names map[spelledName]*spelled
}

type spelledName struct{ typeURL, name string }

// mostSpelled bounds the spellings of a name that are known, of its own authority and of all others. Further ones are
// ignored, and may be forgotten early if they come again when there is room.
const mostSpelled = 64

// spelled has the spellings of a name, the oldest first.
type spelled struct {
	all      []spelling
	watchers map[SpellingWatcher]struct{}
}

type spelling struct {
	written string
	// own: the resource that has it is of the authority of the name.
	own   bool
	count int // of the resources in the cache that have it
}

// best returns the spelling that clients are sent: one authority must not change the resources of another, and a new
// spelling not what clients have accepted.
func (s *spelled) best() string {
	if index := slices.IndexFunc(s.all, func(w spelling) bool { return w.own }); index >= 0 {
		return s.all[index].written
	}
	if len(s.all) > 0 {
		return s.all[0].written
	}
	return ""
}

// count returns the number of spellings of the name's own authority, or of others.
func (s *spelled) count(own bool) (n int) {
	for _, w := range s.all {
		if w.own == own {
			n++
		}
	}
	return n
}

// spell adds (n is 1) or subtracts (-1) what a resource of the scope spells.
func (ts *scopeTopics) spell(r *Resource, n int) { ts.spellings.add(ts.scope.Authority, r, n) }

// respell records that r, nil for none, replaces a member. Other changes of a member do not change its content.
func (s *Set) respell(m members.Member, r *Resource) {
	if r != nil && r.Spellings() != nil {
		s.table.scope.spell(r, 1) // first: what both have stays known
		s.spelling++
	}
	if m.Present() && m.Resource.Spellings() != nil {
		s.table.scope.spell(m.Resource, -1)
		s.spelling--
	}
}

// add adds (n is 1) or subtracts (-1) what a resource of an authority spells. r may be nil.
func (s *spellings) add(authority string, r *Resource, n int) {
	if r == nil {
		return
	}
	for _, one := range r.Spellings() {
		for _, w := range s.addOne(authority, one, n) {
			w.Respelled()
		}
	}
}

// addOne returns the watchers that are to be notified, without the lock.
func (s *spellings) addOne(authority string, one resource.Spelling, n int) (notify []SpellingWatcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.get(spelledName{one.TypeURL, one.Name})
	best := known.best()
	owner, _ := urn.AuthorityOf(one.Name)
	own := owner == authority
	index := slices.IndexFunc(known.all, func(w spelling) bool { return w.written == one.Written && w.own == own })
	switch {
	case index >= 0:
		if known.all[index].count += n; known.all[index].count == 0 {
			known.all = slices.Delete(known.all, index, index+1)
		}
	case n > 0 && known.count(own) < mostSpelled:
		known.all = append(known.all, spelling{written: one.Written, own: own, count: n})
	}
	if known.best() != best {
		notify = slices.Collect(maps.Keys(known.watchers))
	}
	s.tidy(spelledName{one.TypeURL, one.Name})
	return notify
}

// get returns what is known of a name. The caller holds mu.
func (s *spellings) get(name spelledName) *spelled {
	known := s.names[name]
	if known == nil {
		known = &spelled{}
		if s.names == nil {
			s.names = map[spelledName]*spelled{}
		}
		s.names[name] = known
	}
	return known
}

// tidy forgets a name of which nothing is known. The caller holds mu.
func (s *spellings) tidy(name spelledName) {
	if known := s.names[name]; known != nil && len(known.all)+len(known.watchers) == 0 {
		delete(s.names, name)
	}
}

// Spelling returns how resources in the cache write a canonical name of a resource of a type, with its directives. It is
// empty if none of them has the name, or writes it otherwise than canonically. Of several spellings, those of the name's
// own authority come first, and then the oldest.
func (c *Cache) Spelling(typeURL, name string) string {
	c.spellings.mu.Lock()
	defer c.spellings.mu.Unlock()
	if known := c.spellings.names[spelledName{typeURL, name}]; known != nil {
		return known.best()
	}
	return ""
}

// WatchSpelling notifies w of changes of Spelling, until UnwatchSpelling.
func (c *Cache) WatchSpelling(typeURL, name string, w SpellingWatcher) {
	c.spellings.mu.Lock()
	defer c.spellings.mu.Unlock()
	known := c.spellings.get(spelledName{typeURL, name})
	if known.watchers == nil {
		known.watchers = map[SpellingWatcher]struct{}{}
	}
	known.watchers[w] = struct{}{}
}

// UnwatchSpelling ends a WatchSpelling.
func (c *Cache) UnwatchSpelling(typeURL, name string, w SpellingWatcher) {
	c.spellings.mu.Lock()
	defer c.spellings.mu.Unlock()
	id := spelledName{typeURL, name}
	if known := c.spellings.names[id]; known != nil {
		delete(known.watchers, w)
		c.spellings.tidy(id)
	}
}
