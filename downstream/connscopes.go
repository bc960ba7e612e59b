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

// scopeCounts counts how often each scope is used. Most have one or two scopes, and very many clients have a
// scopeCounts. It must not be copied.
type scopeCounts struct {
	few  []scopeCount
	one  [1]scopeCount // room for few
	many *manyScopes   // instead of few, once there are more than fewScopes
}

// manyScopes counts how often each of many scopes is used.
type manyScopes struct {
	n    map[cache.Scope]int
	room cache.Room // of n
}

type scopeCount struct {
	scope cache.Scope
	n     int
}

// fewScopes is how many scopes are searched faster than they are looked up in a map.
const fewScopes = 8

func (c *scopeCounts) len() int {
	if c.many != nil {
		return len(c.many.n)
	}
	return len(c.few)
}

// all iterates over the scopes.
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

// add adds n, which may be negative, to a scope's count, and returns the new count.
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

// scopesOf iterates over the scopes that feed a topic, as far as its name shows them. The configuration names the
// scopes that feed a view, so a client can make up none of them.
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
			return // it was parsed before, so it parses again
		}
		for u, more := u.Alt(); more; u, more = u.Alt() {
			if of.Authority = u.Key().Authority; !yield(of) {
				return
			}
		}
	}
}

// connScopes counts the scopes that the streams of one connection use: for each, the streams that use it.
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

// connections has the connections with streams that use scopes. The zero value is ready.
type connections struct {
	mu sync.Mutex
	// open has each connection by its peer's address, compared by identity and not by content: gRPC makes one address
	// value for a connection and gives it to all of its streams.
	open map[net.Addr]*connScopes
	room cache.Room // of open
}

// join returns what the streams of a connection share, for one more of them.
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
