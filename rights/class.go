package rights

import (
	"sync"

	"github.com/xds-relay/xds-relay/identity"
)

// Class is clients that no rule tells apart. It is safe for concurrent use.
type Class struct {
	// ID is another one for each class.
	ID uint64

	of       *Rules
	identity *identity.Identity

	mu     sync.Mutex
	places map[placeKey]*Place
	// decided are decisions on names, for places where they are costly.
	decided map[nameKey]Decision
}

type placeKey struct{ authority, typeURL string }

type nameKey struct {
	place *Place
	name  string
}

// What a class remembers. Clients can make up authorities under a pattern, types and names.
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

// place evaluates all that does not depend on a name.
func (c *Class) place(authority, typeURL string) *Place {
	p := &Place{class: c, at: variables{authority: authority, typeURL: typeURL, identity: c.identity}}
	p.shared = c.of.impersonal.at(c.of.rules, authority, typeURL)
	named := 0
	for i, rule := range c.of.rules {
		r := ruleAt{index: i, when: p.shared.when[i]}
		if rule.personal {
			r.when = rule.when.at(&p.at)
		}
		fixed, isFixed := r.when.(truth)
		if isFixed && fixed == isFalse {
			continue
		}
		if rule.personal && !isFixed {
			named++
			p.costly = p.costly || evaluates(r.when) || named > fewRules
		}
		r.shared = !rule.personal && !isFixed
		p.rules = append(p.rules, r)
		p.costly = p.costly || rule.evaluates
		if isFixed {
			break // no rule after it is reached
		}
	}
	p.allow = make([]residual, len(p.rules))
	return p
}

// remembered returns a decision that was made before.
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
