package upstream

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// What is held of the wildcard and of each glob: one mechanism. What they differ in
// is which names are members. Of the wildcard that is whatever the control plane
// sends; of a glob it is what is in its directory, also if it came by its own name.

// set is what is held of a wildcard or a glob, whichever stream it came over.
type set struct {
	sub *subscription
	// members is what the set has given, under the keys of the entries. It is nil as
	// long as there is no answer for the set.
	members *cache.Resources
	// refused is why names that are no members could not be had, as the control plane
	// said of the set.
	refused map[string]*cache.Error
	// origin is the version of the members, nil if they are not what the control plane
	// calls so.
	origin *cache.OriginVersion
	// lapsed are members that were not renewed in time. Should the control plane say
	// that one lives, the set is asked for anew.
	lapsed map[string]struct{}

	// guessed: its members are what was known of them by their names, as the control
	// plane did not answer. See settleHeld.
	guessed bool
	// hidden: there was something bad without a name that is known, which may be a member,
	// and no good response since.
	hidden bool

	// incomplete: more of its first answer may follow. See grace.go.
	incomplete bool

	// Of the present stream:

	// latest is when the answer counts as complete whatever comes, zero before a response.
	latest time.Time
	part   time.Time // when the last part of it came, zero before a response
	asked  time.Time // when it was asked for last
	first  firstAnswer
	// listed is what a control plane knows to be held by name while the set has no
	// answer, because it was in initial_resource_versions, or because it came. It is
	// not sent again because of the set, so it counts as a member; that it belongs to
	// the name only could not be told from a response either.
	listed map[string]*cache.Resource

	// parts are the members of the wildcard by the globs in whose directories they are,
	// see in.
	parts parts
}

// isGlob says whether a canonical name is that of a glob collection.
func isGlob(name string) bool {
	return name != cache.Wildcard && cache.Key{Name: name}.IsSet()
}

// list notes that a control plane need not send a resource again because of the set.
func (c *set) list(key string, r *cache.Resource) {
	if c.listed == nil {
		c.listed = map[string]*cache.Resource{}
	}
	c.listed[key] = r
}

// note keeps why a name of the set could not be had, for who asks for it by name
// later.
func (c *set) note(key string, change cache.Change) {
	if change.Err == nil || change.Gone || change.Resource != nil || c.members.Get(key) != nil {
		delete(c.refused, key)
		return
	}
	if c.refused == nil {
		c.refused = map[string]*cache.Error{}
	}
	c.refused[key] = change.Err
}

// partial says that a member that is missing may exist nevertheless.
func (c *set) partial() bool { return c.guessed || c.hidden }

// noteHidden notes whether a response leaves open what all of the members are: as long as
// its first answer is not complete, what one part of that has left open stays so.
func (c *set) noteHidden(p *part, v *verdicts, sotw, settling bool) {
	switch {
	case v.hidden:
		c.hidden = true
	case p.full, !sotw && !settling && !v.onlyBeats():
		c.hidden = false
	}
}

// replace puts other members in the place of all that there are.
func (c *set) replace(members *cache.Resources) { c.members, c.parts = members, parts{} }

// put keeps a member, or none if r is nil.
func (c *set) put(key string, r *cache.Resource) {
	c.parts.put(key, r)
	if r == nil {
		c.members.Delete(key)
		return
	}
	c.members.Put(key, r)
	delete(c.lapsed, key)
}

// restate tells a new set what is held, and what could not be had.
func (c *set) restate() cache.SetUpdate {
	u := cache.SetUpdate{Name: c.sub.name, Full: true, Origin: c.origin, Partial: c.partial(), Incomplete: c.incomplete}
	u.Changes = make([]cache.Change, 0, c.members.Len())
	for key, r := range c.members.All() {
		u.Changes = append(u.Changes, cache.Change{Name: key, Resource: r})
	}
	for key, err := range c.refused {
		u.Changes = append(u.Changes, cache.Change{Name: key, Err: err})
	}
	slices.SortFunc(u.Changes, func(a, b cache.Change) int { return strings.Compare(a.Name, b.Name) })
	return u
}

// members returns those of the wildcard, nil if there is no answer for it.
func (s *subscriptions) members() *cache.Resources {
	if s.wildcard == nil {
		return nil
	}
	return s.wildcard.set.members
}

// globOf returns the subscription to the glob in whose directory a name is, nil if
// there is none.
func (s *subscriptions) globOf(key string) *subscription {
	if len(s.globs) == 0 {
		return nil
	}
	name, _ := urn.GlobOf(key)
	sub := s.globs[name]
	if sub == nil || !isKey(key) {
		return nil
	}
	return sub
}

// sets yields the sets to which a name belongs, answered or not: the wildcard, and
// the glob of its directory.
func (s *subscriptions) sets(key string) func(yield func(*set) bool) {
	return func(yield func(*set) bool) {
		if s.wildcard != nil && !yield(s.wildcard.set) {
			return
		}
		if g := s.globOf(key); g != nil {
			yield(g.set)
		}
	}
}

// member returns what a set has given under a key.
func (s *subscriptions) member(key string) *cache.Resource {
	for c := range s.sets(key) {
		if r := c.members.Get(key); r != nil {
			return r
		}
	}
	return nil
}

// refusedBy returns why a set could not give a name, nil if none has said so.
func (s *subscriptions) refusedBy(key string) (err *cache.Error) {
	for c := range s.sets(key) {
		if e := c.refused[key]; e != nil {
			err = e
		}
	}
	return err
}

// allMembers returns those of all sets.
func (s *subscriptions) allMembers() map[string]*cache.Resource {
	all := make(map[string]*cache.Resource, s.members().Len())
	for _, sub := range s.globs {
		maps.Insert(all, sub.set.members.All())
	}
	maps.Insert(all, s.members().All())
	return all
}

// hasMembers says whether there are any.
func (s *subscriptions) hasMembers() bool {
	for _, sub := range s.globs {
		if sub.set.members.Len() > 0 {
			return true
		}
	}
	return s.members().Len() > 0
}

// begin begins to hold the members of a set, of which something has come, with those
// that are held by name. Who has asked anew for a name that was listed is told.
func (s *subscriptions) begin(c *set, changes []cache.Change) []cache.Change {
	c.replace(cache.NewResources(len(c.listed)))
	for _, name := range slices.Sorted(maps.Keys(c.listed)) {
		r := c.listed[name]
		c.members.Put(name, r)
		if sub := s.names[name]; sub != nil && !sub.answered {
			sub.answered, sub.answer = true, cache.Change{Name: name, Resource: r, Origin: s.versionOf()}
			changes = append(changes, sub.answer)
		}
	}
	if c.sub == s.wildcard {
		c.listed = nil
		return changes
	}
	for name, r := range s.inWildcard(c.sub.name).All() {
		c.members.Put(name, r)
	}
	for name, sub := range s.near.in(c.sub.name, s.names) {
		if r := sub.answer.Resource; r != nil {
			c.members.Put(name, r)
		}
	}
	return changes
}

// list notes which members of globs need not be sent because of a wildcard that has
// no answer yet.
func (s *subscriptions) list(members map[string]*cache.Resource, listed func(*cache.Resource) bool) {
	if s.wildcard == nil || s.members() != nil {
		return
	}
	for key, r := range members {
		if listed(r) {
			s.wildcard.set.list(key, r)
		}
	}
}

// settleHeld makes what is held by name, if there is anything, the members of a glob
// that the control plane does not answer: all that is in it may have been listed, and
// then there is nothing to send. That there is nothing else is not known.
func (s *subscriptions) settleHeld(sub *subscription, u *cache.Update) bool {
	if sub.set == nil || sub == s.wildcard || sub.set.members != nil {
		return false
	}
	u.Changes = s.begin(sub.set, u.Changes)
	if sub.set.members.Len() == 0 {
		sub.set.replace(nil)
		return false
	}
	sub.set.guessed = true
	s.settle(sub.set, nil, u)
	return true
}

// maxGone bounds what is remembered of what was given up on a stream.
const maxGone = 64

// noteGone notes that something was given up of which a response may be on its way.
func (s *subscriptions) noteGone(name string) {
	if !s.live {
		return
	}
	if len(s.gone) == maxGone {
		s.gone = slices.Delete(s.gone, 0, 1)
	}
	s.gone = append(s.gone, name)
}

// leave leaves to a glob that waits for its answer what was held under a name that is
// given up: the control plane need not send it again.
func (s *subscriptions) leave(key string, r *cache.Resource) {
	if g := s.globOf(key); g != nil && g.sent && g.set.members == nil {
		g.set.list(key, r)
	}
}

// release drops the members of a set, and what is kept of those that are of nobody
// else.
func (s *subscriptions) release(c *set) {
	members := c.members
	c.replace(nil)
	c.guessed, c.hidden = false, false
	s.endGrace(c)
	for key := range members.All() {
		if s.held(key) == nil {
			s.drop(key)
		}
	}
}

// drop drops what is kept of a resource besides itself.
func (s *subscriptions) drop(key string) {
	delete(s.variants, key)
	delete(s.ambiguous, key)
	s.expiries.End(key)
}
