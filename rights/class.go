package rights

import (
	"sync"

	"github.com/xds-relay/xds-relay/identity"
)

// Class is clients that no rule tells apart. It is safe for concurrent use.
type Class struct {
	// ID is another one for each class.
	ID uint64

	rules    []*Rule
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
	p := &Place{class: c}
	v := &variables{authority: authority, typeURL: typeURL, identity: c.identity}
	for i, rule := range c.rules {
		when := rule.when.at(v)
		fixed, isFixed := when.(truth)
		if isFixed && fixed == isFalse {
			continue
		}
		of := ruleAt{index: i, when: when, allow: failed}
		if !isFixed || fixed == isTrue {
			of.allow = rule.allow.at(v)
		}
		p.rules = append(p.rules, of)
		p.costly = p.costly || evaluates(of.when) || evaluates(of.allow) || len(p.rules) > fewRules
		if isFixed {
			break // no rule after it is reached
		}
	}
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
