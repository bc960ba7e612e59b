package downstream

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// newScopes bounds how often an identity can make the relay begin a scope, which opens a stream upstream. The limit on
// scopes in use at once does not bound that: an identity may leave each scope and begin another one. A scope that the
// relay already has, in use or idle, costs nothing. The zero value is ready.
type newScopes struct {
	mu    sync.Mutex
	of    map[identityKey]*rate.Limiter
	swept time.Time
}

const (
	// leastNewScopes is how many may begin at once, however low the limit is.
	leastNewScopes = 1000
	// An identity may begin at once newScopesAtOnce times as many scopes as it may use at once, and as many again
	// within newScopesIn.
	newScopesAtOnce = 2
	newScopesIn     = time.Minute
	// mostBeginning is how many identities that recently began scopes are remembered.
	mostBeginning = 1 << 16
)

// take counts a new scope of an identity that may use most scopes at once.
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

// makeRoom makes room for one more identity. The caller holds mu.
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
			delete(n.of, key) // any one: its count restarts
		}
		return
	}
}
