package directory

// The deliveries: the state of a topic after its start, and
// then its changes.

import (
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
)

// Start notes the interest in a topic. See [cache.Source].
func (s *Source) Start(k cache.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := table{k.Scope, k.TypeURL}
	if s.interests[t] == nil {
		s.interests[t] = map[string]bool{}
	}
	s.interests[t][k.Name] = false
	s.pending = append(s.pending, k)
	s.wake()
}

// Refresh does nothing, as the state is always that of the files. See [cache.Source].
func (s *Source) Refresh(cache.Key) {}

// Stop notes that nobody is interested in a topic any more. See [cache.Source].
func (s *Source) Stop(k cache.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := table{k.Scope, k.TypeURL}
	delete(s.interests[t], k.Name)
	if len(s.interests[t]) == 0 {
		delete(s.interests, t)
	}
}

// feed delivers the pending updates, those of a scope together: a resource is never visible without
// those that came with it. Only the feeding goroutine calls it, so the last update is the newest.
func (s *Source) feed() {
	for scope := range cache.EachScope(s.updates()) {
		s.to.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: scope}})
	}
}

// updates takes the pending updates, one per type and scope, in order.
func (s *Source) updates() []cache.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == nil {
		return nil
	}
	byTable := map[table]*cache.Update{}
	update := func(t table) *cache.Update {
		u := byTable[t]
		if u == nil {
			u = &cache.Update{Scope: t.scope, TypeURL: t.typeURL}
			byTable[t] = u
		}
		return u
	}
	for t, names := range s.interests {
		if changed := s.changed[t.typeURL]; len(changed) > 0 {
			changes := func() *cache.Update {
				u := update(t)
				u.Receipt = s.receipt
				return u
			}
			s.addChanges(changes, t.typeURL, names, changed)
		}
	}
	clear(s.changed)
	s.receipt = nil
	for _, k := range s.pending {
		t := table{k.Scope, k.TypeURL}
		sent, interested := s.interests[t][k.Name]
		if !interested || sent {
			continue
		}
		s.interests[t][k.Name] = true
		u := update(t)
		if k.IsSet() {
			u.Sets = append(u.Sets, s.state.set(k.TypeURL, k.Name))
		} else {
			u.Changes = append(u.Changes, s.state.change(k.TypeURL, k.Name))
		}
	}
	s.pending = nil
	var updates []cache.Update
	for _, u := range byTable {
		updates = append(updates, *u)
	}
	cache.InOrder(updates)
	return updates
}

// addChanges adds the changes of topics whose state was delivered.
func (s *Source) addChanges(update func() *cache.Update, typeURL string, names map[string]bool, changed map[string]struct{}) {
	sets := map[string][]cache.Change{}
	for key := range changed {
		if names[key] {
			u := update()
			u.Changes = append(u.Changes, s.state.change(typeURL, key))
		}
		if set := setOf(key); names[set] {
			sets[set] = append(sets[set], cache.Change{Name: key, Resource: s.state.resources[typeURL][key]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		u := update()
		u.Sets = append(u.Sets, cache.SetUpdate{Name: name, Changes: sets[name], Answer: cache.FirstAnswer})
	}
}

// resendUnanswered queues topics whose answer may be better known now: names that may now be
// known to be absent, and sets that may now be known. The caller holds mu.
func (s *Source) resendUnanswered(before *state) {
	if before.missing == nil || sameError(before.missing, s.state.missing) {
		return
	}
	for t, names := range s.interests {
		for name, sent := range names {
			unanswered := s.state.resources[t.typeURL][name] == nil
			if k := (cache.Key{Scope: t.scope, Name: name}); k.IsSet() {
				unanswered = before.unread && !s.state.unread
			}
			if sent && unanswered {
				names[name] = false
				s.pending = append(s.pending, cache.Key{Scope: t.scope, TypeURL: t.typeURL, Name: name})
			}
		}
	}
}

func sameError(a, b *cache.Error) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
