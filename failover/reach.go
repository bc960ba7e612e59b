package failover

import (
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Reach knows which scopes cannot be reached. A scope of which nothing is known,
// because nobody asks for anything in it or because a directory feeds it, can be.
type Reach struct {
	mu    sync.Mutex
	down  map[cache.Scope]time.Time
	room  cache.Room // of down
	watch []func(cache.Scope)
}

// NewReach makes a Reach that knows nothing yet.
func NewReach() *Reach { return &Reach{down: map[cache.Scope]time.Time{}} }

// Unreachable says that none of a scope's servers can be reached, and since when: it
// is so from the loss of the last one, once all have been tried, until one answers.
// It may be called with any lock held, and by any goroutine. Dynamic parameters do not
// matter: they are asked for on the same stream.
func (r *Reach) Unreachable(scope cache.Scope) (since time.Time, down bool) {
	scope.Params = ""
	r.mu.Lock()
	defer r.mu.Unlock()
	since, down = r.down[scope]
	return since, down
}

// Notify has f called whenever a scope becomes unreachable, or is so no longer. f is
// called with locks held that come before the cache's: it must not block, and must
// neither call the cache nor a feeder, only note what is to be done. Notify comes
// before the first scope is fed.
func (r *Reach) Notify(f func(cache.Scope)) { r.watch = append(r.watch, f) }

// Count returns how many scopes cannot be reached, by authority.
func (r *Reach) Count() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[string]int{}
	for scope := range r.down {
		n[scope.Authority]++
	}
	return n
}

// set notes what is known of a scope.
func (r *Reach) set(scope cache.Scope, since time.Time, down bool) {
	r.mu.Lock()
	_, was := r.down[scope]
	if down {
		r.down[scope] = since
	} else {
		r.down = cache.Without(r.down, &r.room, scope)
	}
	r.mu.Unlock()
	if was != down {
		for _, f := range r.watch {
			f(scope)
		}
	}
}
