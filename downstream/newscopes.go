package downstream

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// newScopes bounds how often an identity has the relay begin a scope, which opens a stream upstream.
// The number of scopes that it uses at once does not: it may leave each and begin another one. A scope
// that the relay has already, in use or idle, costs nothing. The zero value is ready.
type newScopes struct {
	mu    sync.Mutex
	of    map[identityKey]*rate.Limiter
	swept time.Time
}

const (
	// leastNewScopes may be begun at once, however low the limit is.
	leastNewScopes = 1000
	// newScopesAtOnce and newScopesIn: how many times as many as an identity may use at once may be
	// begun at once, and in which time it may begin as many again.
	newScopesAtOnce = 2
	newScopesIn     = time.Minute
	// mostBeginning is how many identities are remembered that have begun scopes of late.
	mostBeginning = 1 << 16
)

// take takes a new scope of an identity that may use so many at once.
func (n *newScopes) take(key identityKey, most int, now time.Time) *excess {
	if most == 0 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	pace := n.of[key]
	if pace == nil {
		n.makeRoom(now)
		burst := max(leastNewScopes, newScopesAtOnce*most)
		pace = rate.NewLimiter(rate.Limit(float64(most)/newScopesIn.Seconds()), burst)
		n.of[key] = pace
	}
	if pace.AllowN(now, 1) {
		return nil
	}
	return &excess{
		limit: limitIdentityScopes, got: pace.Burst(), most: most,
		what: "more than %d new authorities, partitions and sets of dynamic parameters of this identity in a short time",
	}
}

// makeRoom has room for one identity more. The caller holds mu.
func (n *newScopes) makeRoom(now time.Time) {
	if n.of == nil {
		n.of = map[identityKey]*rate.Limiter{}
	}
	if len(n.of) < mostBeginning {
		return
	}
	if now.Sub(n.swept) >= time.Second {
		n.swept = now
		for key, pace := range n.of {
			if pace.TokensAt(now) >= float64(pace.Burst()) {
				delete(n.of, key)
			}
		}
	}
	for key := range n.of {
		if len(n.of) >= mostBeginning {
			delete(n.of, key) // any: it begins anew
		}
		return
	}
}
