package feed

import (
	"maps"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Reachability lists the unreachable scopes. A scope to which nobody subscribes, and a
// scope that a directory feeds, counts as reachable. It is safe for concurrent use.
type Reachability struct {
	mu        sync.Mutex
	down      map[cache.Scope]time.Time
	room      cache.Room // of down
	observers []func(cache.Scope)
}

// NewReachability returns a list in which every scope is reachable.
func NewReachability() *Reachability { return &Reachability{down: map[cache.Scope]time.Time{}} }

// Unreachable reports whether none of a scope's servers is reachable, and since when.
// The state begins once all servers have been tried, counts from the loss of the last
// one, and ends when a server answers. Unreachable may be called by any goroutine and
// with any lock held.
func (r *Reachability) Unreachable(scope cache.Scope) (since time.Time, down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, down = r.down[scope]
	return since, down
}

// Notify registers f, which is called whenever a scope becomes unreachable or reachable
// again. f is called with locks held that come before the cache's: it must not block, and
// must call neither the cache nor a source. Notify must be called before the first scope
// is fed.
func (r *Reachability) Notify(f func(cache.Scope)) { r.observers = append(r.observers, f) }

// Count returns the number of unreachable scopes, by authority.
func (r *Reachability) Count() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[string]int{}
	for scope := range r.down {
		n[scope.Authority]++
	}
	return n
}

// set records the state of a scope.
func (r *Reachability) set(scope cache.Scope, since time.Time, down bool) {
	r.mu.Lock()
	_, was := r.down[scope]
	if down {
		r.down[scope] = since
	} else {
		r.down = cache.Without(r.down, &r.room, scope)
	}
	r.mu.Unlock()
	if was != down {
		for _, f := range r.observers {
			f(scope)
		}
	}
}

// Down returns the unreachable scopes, each with the time since when it is unreachable.
func (r *Reachability) Down() map[cache.Scope]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.down)
}
