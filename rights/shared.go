package rights

import "sync"

// This file shares results between clients: the first rule for a name, of the rules whose when does not read the
// identity, or does so only in operands that do not read the name. Clients share these even if each has its own
// identity.

// impersonal remembers these results. The zero value is ready.
type impersonal struct {
	mu     sync.RWMutex
	places map[placeKey]*sharedPlace
	folded map[foldedKey]*sharedFinder
	found  map[sharedKey]found
}

// sharedPlace has the residuals of the rules for the names of an authority and a type.
type sharedPlace struct {
	sharedFinder // for the rules that do not read the identity
	// when has the residual of each rule's when, nil for rules that read the identity.
	when []residual
}

// sharedFinder is a finder that many clients share.
type sharedFinder struct {
	finder finder
	// costly: remembering the first rule for a name is cheaper than finding it again.
	costly bool
}

func newSharedFinder(conditions []numbered) sharedFinder {
	f := sharedFinder{finder: newFinder(conditions)}
	f.costly = f.finder.costly()
	return f
}

// foldedKey identifies the residuals of rules that read the identity, at a place.
type foldedKey struct {
	place *sharedPlace
	rules string
}

type sharedKey struct {
	finder *sharedFinder
	name   string
}

// maxFound bounds the names that are remembered.
const maxFound = 1 << 14

func (s *impersonal) at(rules []*Rule, authority, typeURL string) *sharedPlace {
	key := placeKey{authority, typeURL}
	s.mu.RLock()
	p := s.places[key]
	s.mu.RUnlock()
	if p != nil {
		return p
	}
	p = newSharedPlace(rules, &variables{authority: authority, typeURL: typeURL})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.places == nil || len(s.places) == maxPlaces {
		s.places, s.folded, s.found = map[placeKey]*sharedPlace{}, nil, nil
	}
	s.places[key] = p
	return p
}

func newSharedPlace(rules []*Rule, v *variables) *sharedPlace {
	p := &sharedPlace{when: make([]residual, len(rules))}
	var conditions []numbered
	for i, rule := range rules {
		if rule.personal {
			continue
		}
		p.when[i] = rule.when.at(v)
		fixed, isFixed := p.when[i].(truth)
		if isFixed && fixed == isFalse {
			continue
		}
		conditions = append(conditions, numbered{i, p.when[i]})
		if isFixed {
			break // later rules are not reached
		}
	}
	p.sharedFinder = newSharedFinder(conditions)
	return p
}

// finderOf returns the finder for the residuals of rules that read the identity.
func (s *impersonal) finderOf(key foldedKey, conditions []numbered) *sharedFinder {
	s.mu.RLock()
	f := s.folded[key]
	s.mu.RUnlock()
	if f != nil {
		return f
	}
	of := newSharedFinder(conditions)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.folded == nil || len(s.folded) == maxPlaces {
		s.folded, s.found = map[foldedKey]*sharedFinder{}, nil
	}
	s.folded[key] = &of
	return &of
}

// first returns the first rule before limit that applies to a name.
func (s *impersonal) first(f *sharedFinder, name string, limit int) found {
	if f == nil {
		return foundNone
	}
	if !f.costly || len(name) > maxDecidedName {
		return f.finder.first(name, limit)
	}
	key := sharedKey{f, name}
	s.mu.RLock()
	is, known := s.found[key]
	s.mu.RUnlock()
	if !known {
		is = f.finder.first(name, noRule)
		s.mu.Lock()
		if s.found == nil || len(s.found) == maxFound {
			s.found = map[sharedKey]found{}
		}
		s.found[key] = is
		s.mu.Unlock()
	}
	if is.rule >= limit {
		return foundNone
	}
	return is
}
