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
	if at := slices.IndexFunc(s.all, func(w spelling) bool { return w.own }); at >= 0 {
		return s.all[at].written
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
func (of *scopeTopics) spell(r *Resource, n int) { of.spellings.add(of.scope.Authority, r, n) }

// respell records that r, nil for none, replaces a member. Other changes of a member do not change its content.
func (s *Set) respell(m members.Member, r *Resource) {
	if r != nil && r.Spellings() != nil {
		s.table.of.spell(r, 1) // first: what both have stays known
		s.spelling++
	}
	if m.Present() && m.Resource.Spellings() != nil {
		s.table.of.spell(m.Resource, -1)
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
	of := s.get(spelledName{one.TypeURL, one.Name})
	was := of.best()
	owner, _ := urn.AuthorityOf(one.Name)
	own := owner == authority
	at := slices.IndexFunc(of.all, func(w spelling) bool { return w.written == one.Written && w.own == own })
	switch {
	case at >= 0:
		if of.all[at].count += n; of.all[at].count == 0 {
			of.all = slices.Delete(of.all, at, at+1)
		}
	case n > 0 && of.count(own) < mostSpelled:
		of.all = append(of.all, spelling{written: one.Written, own: own, count: n})
	}
	if of.best() != was {
		notify = slices.Collect(maps.Keys(of.watchers))
	}
	s.tidy(spelledName{one.TypeURL, one.Name})
	return notify
}

// get returns what is known of a name. The caller holds mu.
func (s *spellings) get(name spelledName) *spelled {
	of := s.names[name]
	if of == nil {
		of = &spelled{}
		if s.names == nil {
			s.names = map[spelledName]*spelled{}
		}
		s.names[name] = of
	}
	return of
}

// tidy forgets a name of which nothing is known. The caller holds mu.
func (s *spellings) tidy(name spelledName) {
	if of := s.names[name]; of != nil && len(of.all)+len(of.watchers) == 0 {
		delete(s.names, name)
	}
}

// Spelling returns how resources in the cache write a canonical name of a resource of a type, with its directives. It is
// empty if none of them has the name, or writes it otherwise than canonically. Of several spellings, those of the name's
// own authority come first, and then the oldest.
func (c *Cache) Spelling(typeURL, name string) string {
	c.spellings.mu.Lock()
	defer c.spellings.mu.Unlock()
	if of := c.spellings.names[spelledName{typeURL, name}]; of != nil {
		return of.best()
	}
	return ""
}

// WatchSpelling notifies w of changes of Spelling, until UnwatchSpelling.
func (c *Cache) WatchSpelling(typeURL, name string, w SpellingWatcher) {
	c.spellings.mu.Lock()
	defer c.spellings.mu.Unlock()
	of := c.spellings.get(spelledName{typeURL, name})
	if of.watchers == nil {
		of.watchers = map[SpellingWatcher]struct{}{}
	}
	of.watchers[w] = struct{}{}
}

// UnwatchSpelling ends a WatchSpelling.
func (c *Cache) UnwatchSpelling(typeURL, name string, w SpellingWatcher) {
	c.spellings.mu.Lock()
	defer c.spellings.mu.Unlock()
	id := spelledName{typeURL, name}
	if of := c.spellings.names[id]; of != nil {
		delete(of.watchers, w)
		c.spellings.tidy(id)
	}
}
