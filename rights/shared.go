package rights

import "sync"

// What is the same for many clients: which rule is about a name first, of those whose when does not
// read the identity, or reads it apart from the name. Clients of which each has an identity of its own
// share that.

// impersonal remembers it. The zero value is ready.
type impersonal struct {
	mu     sync.RWMutex
	places map[placeKey]*sharedPlace
	folded map[foldedKey]*sharedFinder
	found  map[sharedKey]found
}

// sharedPlace is what is left of the rules for the names of an authority and a type.
type sharedPlace struct {
	sharedFinder // of those that do not read the identity
	// when are by rule, nil for those that read the identity.
	when []residual
}

// sharedFinder is a finder of which many clients have the same.
type sharedFinder struct {
	finder finder
	// costly: to remember which rule is about a name is cheaper than to find it again.
	costly bool
}

func newSharedFinder(conditions []numbered) sharedFinder {
	f := sharedFinder{finder: newFinder(conditions)}
	f.costly = f.finder.costly()
	return f
}

// foldedKey is what is left of rules that read the identity, at a place.
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
			break // no rule after it is reached
		}
	}
	p.sharedFinder = newSharedFinder(conditions)
	return p
}

// finderOf returns the finder of what is left of rules that read the identity.
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

// first returns the first rule before a limit that is about a name.
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
