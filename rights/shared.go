package rights

import "sync"

// What is the same for all clients: whether a rule is about a name, where its when does not read the
// identity. Clients of which each has an identity of its own share that.

// impersonal remembers it. The zero value is ready.
type impersonal struct {
	mu      sync.RWMutex
	places  map[placeKey]*sharedPlace
	matched map[sharedKey][]truth
}

// sharedPlace is what is left of the rules for the names of an authority and a type.
type sharedPlace struct {
	// when are by rule, nil for those that read the identity.
	when []residual
	// costly: to remember which rules are about a name is cheaper than to find out again.
	costly bool
}

type sharedKey struct {
	place *sharedPlace
	name  string
}

// maxMatched bounds the names that are remembered.
const maxMatched = 1 << 14

func (s *impersonal) at(rules []*Rule, authority, typeURL string) *sharedPlace {
	key := placeKey{authority, typeURL}
	s.mu.RLock()
	p := s.places[key]
	s.mu.RUnlock()
	if p != nil {
		return p
	}
	p = &sharedPlace{when: make([]residual, len(rules))}
	v := &variables{authority: authority, typeURL: typeURL}
	named := 0
	for i, rule := range rules {
		if rule.personal {
			continue
		}
		p.when[i] = rule.when.at(v)
		if _, fixed := p.when[i].(truth); !fixed {
			named++
			p.costly = p.costly || evaluates(p.when[i]) || named > fewRules
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.places == nil || len(s.places) == maxPlaces {
		s.places, s.matched = map[placeKey]*sharedPlace{}, nil
	}
	s.places[key] = p
	return p
}

// matches returns, by rule, whether it is about a name; nil if that is quicker to find out anew.
func (s *impersonal) matches(p *sharedPlace, name string) []truth {
	if !p.costly || len(name) > maxDecidedName {
		return nil
	}
	key := sharedKey{p, name}
	s.mu.RLock()
	is, known := s.matched[key]
	s.mu.RUnlock()
	if known {
		return is
	}
	is = make([]truth, len(p.when))
	for i, when := range p.when {
		if when == nil {
			continue
		}
		if is[i] = when.of(name); is[i] != isFalse {
			break // no rule after it is reached
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.matched == nil || len(s.matched) == maxMatched {
		s.matched = map[sharedKey][]truth{}
	}
	s.matched[key] = is
	return is
}
