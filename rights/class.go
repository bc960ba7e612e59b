package rights

import (
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/xds-relay/xds-relay/identity"
)

// Class is a group of clients that no rule distinguishes. It is safe for concurrent use.
type Class struct {
	// ID differs between classes.
	ID uint64

	of       *Rules
	identity *identity.Identity

	mu     sync.Mutex
	places map[placeKey]*Place
	// decided remembers decisions on names, for places where they are costly.
	decided map[nameKey]Decision
}

type placeKey struct{ authority, typeURL string }

type nameKey struct {
	place *Place
	name  string
}

// These bound what a class remembers. Clients can invent authorities that match a pattern, types and names.
const (
	maxPlaces      = 1 << 8
	maxDecided     = 1 << 12
	maxDecidedName = 1 << 8 // bytes
)

// At returns the rights on names of an authority and a type.
func (c *Class) At(authority, typeURL string) *Place {
	key := placeKey{authority, typeURL}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.places[key]; p != nil {
		return p
	}
	if c.places == nil || len(c.places) == maxPlaces {
		c.places, c.decided = map[placeKey]*Place{}, nil
	}
	p := c.place(authority, typeURL)
	c.places[key] = p
	return p
}

// place evaluates everything that does not depend on a name.
func (c *Class) place(authority, typeURL string) *Place {
	p := &Place{class: c, at: variables{authority: authority, typeURL: typeURL, identity: c.identity}}
	p.shared = c.of.impersonal.at(c.of.rules, authority, typeURL)
	p.allow = make([]atomic.Pointer[residual], len(c.of.rules))
	var folded, own []numbered
	var key []byte
	for i, rule := range c.of.rules {
		when := p.shared.when[i]
		if rule.personal {
			when = rule.when.at(&p.at)
		}
		fixed, isFixed := when.(truth)
		if isFixed && fixed == isFalse {
			continue
		}
		if p.first.when == nil {
			p.first = numbered{i, when}
		}
		p.costly = p.costly || rule.evaluates
		if rule.personal {
			begin := len(key)
			if all, ok := fold(append(strconv.AppendInt(key, int64(i), 10), ':'), when); ok {
				key, folded = all, append(folded, numbered{i, when})
			} else {
				key, own = key[:begin], append(own, numbered{i, when})
			}
		}
		if isFixed {
			break // later rules are not reached
		}
	}
	if len(folded) > 0 {
		p.folded = c.of.impersonal.finderOf(foldedKey{p.shared, string(key)}, folded)
	}
	p.own = newFinder(own)
	p.costly = p.costly || p.own.costly()
	return p
}

// remembered returns an earlier decision.
func (c *Class) remembered(key nameKey) (Decision, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.decided[key]
	return d, ok
}

func (c *Class) remember(key nameKey, d Decision) {
	if len(key.name) > maxDecidedName {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.decided == nil || len(c.decided) == maxDecided {
		c.decided = map[nameKey]Decision{}
	}
	c.decided[key] = d
}
