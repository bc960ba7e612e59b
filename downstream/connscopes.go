package downstream

import (
	"context"
	"iter"
	"net"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// Counting the scopes that streams and connections use.

// scopeCounts are scopes, and how often each is used. Most have one or two, and very many
// clients have scopeCounts. They must not be copied.
type scopeCounts struct {
	few  []scopeCount
	one  [1]scopeCount // room for few
	many *manyScopes   // instead of few, once there are more than fewScopes
}

// manyScopes are how often each of many scopes is used.
type manyScopes struct {
	n    map[cache.Scope]int
	room cache.Room // of n
}

type scopeCount struct {
	scope cache.Scope
	n     int
}

// fewScopes are so few that to look through them is quicker than to look one up.
const fewScopes = 8

func (c *scopeCounts) len() int {
	if c.many != nil {
		return len(c.many.n)
	}
	return len(c.few)
}

// all yields the scopes.
func (c *scopeCounts) all() iter.Seq[cache.Scope] {
	return func(yield func(cache.Scope) bool) {
		if c.many != nil {
			for scope := range c.many.n {
				if !yield(scope) {
					return
				}
			}
			return
		}
		for _, of := range c.few {
			if !yield(of.scope) {
				return
			}
		}
	}
}

func (c *scopeCounts) get(scope cache.Scope) int {
	if c.many != nil {
		return c.many.n[scope]
	}
	for i := range c.few {
		if c.few[i].scope == scope {
			return c.few[i].n
		}
	}
	return 0
}

// add adds n, which may be negative, and returns how often the scope is used then.
func (c *scopeCounts) add(scope cache.Scope, n int) int {
	if c.many != nil {
		return c.addMany(scope, n)
	}
	for i := range c.few {
		if of := &c.few[i]; of.scope == scope {
			of.n += n
			if left := of.n; left > 0 {
				return left
			}
			c.few = slices.Delete(c.few, i, i+1)
			return 0
		}
	}
	if len(c.few) < fewScopes {
		if c.few == nil {
			c.few = c.one[:0]
		}
		c.few = append(c.few, scopeCount{scope, n})
		return n
	}
	c.many = &manyScopes{n: make(map[cache.Scope]int, 2*fewScopes)}
	for _, of := range c.few {
		c.many.n[of.scope] = of.n
	}
	c.few, c.one = nil, [1]scopeCount{}
	return c.addMany(scope, n)
}

func (c *scopeCounts) addMany(scope cache.Scope, n int) int {
	m := c.many
	if n += m.n[scope]; n > 0 {
		m.n[scope] = n
		return n
	}
	if m.n = cache.Without(m.n, &m.room, scope); len(m.n) == 0 {
		c.many = nil
	}
	return 0
}

// scopesOf yields the scopes that a topic is fed from, as far as its name says so. A view is
// fed from what the configuration names, and so from none that a client can make up.
func scopesOf(k cache.Key) iter.Seq[cache.Scope] {
	return func(yield func(cache.Scope) bool) {
		derived, of := k.Scope.Derived, k.Scope
		of.Derived, of.New = "", false
		switch derived {
		case "":
			yield(of)
			return
		case cache.Resolved, cache.Passed:
		default:
			return
		}
		if !yield(of) || of.OldStyle || !strings.Contains(k.Name, "#") {
			return
		}
		u, err := urn.ParseURL(k.Name)
		if err != nil {
			return // it was parsed before
		}
		for u, more := u.Alt(); more; u, more = u.Alt() {
			if of.Authority = u.Key().Authority; !yield(of) {
				return
			}
		}
	}
}

// connScopes are those that the streams of one connection use, with the number of the
// streams that use each.
type connScopes struct {
	addr    net.Addr
	streams int // guarded by connections.mu

	mu     sync.Mutex
	counts scopeCounts
}

func (c *connScopes) enter(scope cache.Scope, most int) *excess {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts.get(scope) == 0 {
		if e := over(limitConnScopes, c.counts.len()+1, most, "%d authorities, partitions and sets of dynamic parameters on this connection"); e != nil {
			return e
		}
	}
	c.counts.add(scope, 1)
	return nil
}

func (c *connScopes) leave(scope cache.Scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.add(scope, -1)
}

// connections are those with streams that use scopes. The zero value is ready.
type connections struct {
	mu sync.Mutex
	// open has each by its peer's address: not by what that says, but by the value, of
	// which gRPC makes one for a connection and gives to all of its streams.
	open map[net.Addr]*connScopes
	room cache.Room // of open
}

// join returns what the streams of a connection have in common, for one more of them.
func (c *connections) join(ctx context.Context) *connScopes {
	var addr net.Addr
	if p, ok := peer.FromContext(ctx); ok {
		addr = p.Addr
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.open[addr]
	if conn == nil {
		if c.open == nil {
			c.open = map[net.Addr]*connScopes{}
		}
		conn = &connScopes{addr: addr}
		c.open[addr] = conn
	}
	conn.streams++
	return conn
}

// leave undoes a join.
func (c *connections) leave(conn *connScopes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn.streams--; conn.streams == 0 {
		c.open = cache.Without(c.open, &c.room, conn.addr)
	}
}
