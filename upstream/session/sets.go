package session

import (
	"maps"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// Sets are the subscriptions to the wildcard and globs of one type. They differ in their members:
// those of the wildcard are all resources that the control plane sends for it, those of a
// glob the resources in its directory.
type Sets struct {
	core
	wildcard *set            // nil if there is none
	globs    map[string]*set // also those that are fed from the wildcard
	globRoom cache.Room      // of globs
	// names share the stream, nil if none do.
	names *Names
	// noGlobs says that globs are not requested from the control plane.
	noGlobs bool
	// answers and habits are those of Config.
	answers Answers
	habits  *Habits
	// lostEndpoints are those to which Clusters referred before the last response. See endpoints.go.
	lostEndpoints []string

	// Of the present stream:

	// inherited are the members that came before the stream and not since, if there are
	// dynamic parameters.
	inherited map[string]struct{}
	// gone are the last few globs, and names that share the stream, that were given up.
	gone []string
	// hadWildcard says that a wildcard was requested. hadNames says that names were requested
	// which have moved to the names stream.
	hadWildcard, hadNames bool
	// settling are the sets that are not known to be complete, and when each counts as
	// complete.
	settling cache.Expiries[*set]
	// graces are the sets with incomplete first answers, and when each answer counts as complete.
	graces cache.Expiries[*set]
	nudges nudges
}

// NewSets returns the sets of a type, without subscriptions.
func NewSets(c Config) *Sets {
	if c.Habits == nil {
		c.Habits = new(Habits)
	}
	return &Sets{core: newCore(c), globs: map[string]*set{}, noGlobs: c.NoGlobs, answers: c.Answers, habits: c.Habits}
}

// find returns a set, nil if there is none.
func (s *Sets) find(name string) *set {
	if name == cache.Wildcard {
		return s.wildcard
	}
	return s.globs[name]
}

func (s *Sets) get(name string) *subscription {
	if c := s.find(name); c != nil {
		return &c.subscription
	}
	return nil
}

// inOrder returns the wildcard and the globs, in the order of their names.
func (s *Sets) inOrder() []*set {
	list := make([]*set, 0, 1+len(s.globs))
	if s.wildcard != nil {
		list = append(list, s.wildcard)
	}
	for _, name := range slices.Sorted(maps.Keys(s.globs)) {
		list = append(list, s.globs[name])
	}
	return list
}

// each iterates over the wildcard and the globs, in any order.
func (s *Sets) each(yield func(*set) bool) {
	if s.wildcard != nil && !yield(s.wildcard) {
		return
	}
	for _, c := range s.globs {
		if !yield(c) {
			return
		}
	}
}

func (s *Sets) all() func(yield func(*subscription) bool) {
	return func(yield func(*subscription) bool) {
		for _, c := range s.inOrder() {
			if !yield(&c.subscription) {
				return
			}
		}
	}
}

// globOf returns the glob of a name's directory, nil if there is none.
func (s *Sets) globOf(key string) *set {
	if len(s.globs) == 0 {
		return nil
	}
	var few [128]byte // most names are no longer
	name, _ := urn.AppendGlobOf(few[:0], key)
	if c := s.globs[string(name)]; c != nil && isKey(key) {
		return c
	}
	return nil
}

// of iterates over the sets to which a name belongs, answered or not: the wildcard, and
// the glob of its directory.
func (s *Sets) of(key string) func(yield func(*set) bool) {
	return func(yield func(*set) bool) {
		if s.wildcard != nil && !yield(s.wildcard) {
			return
		}
		if g := s.globOf(key); g != nil {
			yield(g)
		}
	}
}

// member returns the member with a key, of any set. It returns nil if there is none.
func (s *Sets) member(key string) *cache.Resource {
	for c := range s.of(key) {
		if r := c.members.Get(key); r != nil {
			return r
		}
	}
	return nil
}

// given returns the resource that the control plane has sent under a key, and need not send again: a
// member, or a resource that is listed for a glob without an answer.
func (s *Sets) given(key string) *cache.Resource {
	if r := s.member(key); r != nil {
		return r
	}
	if g := s.globOf(key); g != nil {
		return g.listed[key]
	}
	return nil
}

// memberVersion returns the version of the set that has a member, nil if no set has it.
func (s *Sets) memberVersion(key string) *cache.OriginVersion {
	for c := range s.of(key) {
		if c.members.Get(key) != nil {
			return c.origin
		}
	}
	return nil
}

// hasAnswered reports whether the control plane has answered the glob of a name's directory.
func (s *Sets) hasAnswered(key string) bool {
	if s == nil {
		return false
	}
	g := s.globOf(key)
	return g != nil && g.answered && !g.guessed
}

// refusedBy returns the error that a set has for a name, nil if there is none.
func (s *Sets) refusedBy(key string) (err *cache.Error) {
	for c := range s.of(key) {
		if e := c.refused[key]; e != nil {
			err = e
		}
	}
	return err
}

// members returns the members of the wildcard, nil if there is no answer for it.
func (s *Sets) members() *cache.Resources {
	if s.wildcard == nil {
		return nil
	}
	return s.wildcard.members
}

// allMembers returns the members of all sets.
func (s *Sets) allMembers() map[string]*cache.Resource {
	all := make(map[string]*cache.Resource, s.members().Len())
	for _, c := range s.globs {
		maps.Insert(all, c.members.All())
	}
	maps.Insert(all, s.members().All())
	return all
}

// hasMembers reports whether any set has members.
func (s *Sets) hasMembers() bool {
	for _, c := range s.globs {
		if c.members.Len() > 0 {
			return true
		}
	}
	return s.members().Len() > 0
}

func (s *Sets) start(name string, down *cache.Error, u *cache.Update) {
	c := s.find(name)
	if c == nil {
		c = s.add(name)
	}
	if !c.started {
		c.started = true
		s.wanted++
	}
	s.want(c)
	switch {
	case !c.isWildcard() && s.filters():
		s.needWildcard()
		s.restateGlob(c, down, u)
	case c.answered:
		u.Sets = append(u.Sets, c.restate())
	case down != nil:
		s.fail(&c.subscription, down, u)
	case c.failure != nil:
		s.fail(&c.subscription, c.failure, u)
	}
}

func (s *Sets) add(name string) *set {
	c := &set{subscription: subscription{name: name}}
	if name == cache.Wildcard {
		s.wildcard = c
	} else {
		s.globs[name] = c
	}
	return c
}

func (s *Sets) again(name string, down *cache.Error, u *cache.Update) {
	c := s.find(name)
	if c == nil || !c.started {
		return
	}
	if down != nil {
		s.fail(&c.subscription, down, u)
	}
	if !c.wanted {
		c = s.wildcard // the wildcard feeds it
	}
	s.refresh(&c.subscription)
}

func (s *Sets) stop(name string) {
	c := s.find(name)
	if c == nil || !c.started {
		return
	}
	c.started = false
	s.wanted--
	s.want(c)
	if !c.isWildcard() && s.filters() {
		s.forget(&c.subscription)
		s.needWildcard()
	}
}

// want sets whether a set must be requested from the control plane.
func (s *Sets) want(c *set) {
	wanted := s.due(c)
	if c.wanted == wanted {
		return
	}
	c.wanted = wanted
	if wanted || c.sent {
		s.touch(&c.subscription)
	} else {
		s.forget(&c.subscription)
	}
}

func (s *Sets) forget(sub *subscription) {
	c := s.find(sub.name)
	if c.isWildcard() {
		s.wildcard = nil
	} else {
		s.noteGone(sub.name)
		s.globs = cache.Without(s.globs, &s.globRoom, sub.name)
	}
	s.settling.End(c)
	for key := range c.listed {
		s.drop(key)
	}
	for key, r := range c.members.All() {
		s.list(key, r)
	}
	s.release(c)
}

// leave records that a name that shares the stream was given up.
func (s *Sets) leave(sub *subscription) {
	s.noteGone(sub.name)
	if sub.isMember() && s.list(sub.name, sub.answer.Resource) {
		s.takeOverName(sub)
	}
}

// list gives the resource of a subscription that was given up to the glob of its directory, if that
// waits for its answer: the control plane need not send the resource again.
func (s *Sets) list(key string, r *cache.Resource) bool {
	g := s.globOf(key)
	if g == nil || !g.sent || g.members != nil {
		return false
	}
	g.list(key, r)
	return true
}

// takeOverName takes over the variants and the TTL of a name's resource.
func (s *Sets) takeOverName(sub *subscription) {
	s.takeOver(sub.name, &s.names.core, true)
	if s.inherited != nil && sub.seen <= s.before {
		s.inherited[sub.name] = struct{}{}
	}
}

// maxGone bounds Sets.gone.
const maxGone = 64

// noteGone notes that a glob or a name was given up. A response for it may be on its way.
func (s *Sets) noteGone(name string) {
	if !s.live {
		return
	}
	if len(s.gone) == maxGone {
		s.gone = slices.Delete(s.gone, 0, 1)
	}
	s.gone = append(s.gone, name)
}

// release drops the members of a set. It also drops the variants and TTLs of those that are members
// of no other set.
func (s *Sets) release(c *set) {
	members := c.members
	c.replace(nil)
	c.guessed, c.hidden = false, false
	s.endGrace(c)
	for key := range members.All() {
		s.drop(key)
	}
}

// drop drops the variants and the TTL of a resource, if it is no longer a member of any set.
func (s *Sets) drop(key string) {
	if s.member(key) == nil {
		s.variants.drop(key)
		s.expiries.End(key)
	}
}

func (s *Sets) opened(sotw bool) {
	filtered := s.filters()
	s.openedCore(sotw)
	s.inherited = nil
	if s.params != nil {
		members := s.allMembers()
		s.inherited = make(map[string]struct{}, len(members))
		for key := range members {
			s.inherited[key] = struct{}{}
		}
	}
	if s.filters() != filtered {
		s.reroute()
		s.changed = nil
	}
	for _, c := range s.inOrder() {
		s.changed = append(s.changed, &c.subscription)
		c.resumed, c.stated, c.came = c.answered, false, nil
	}
}

// Lost implements Subscriptions.
func (s *Sets) Lost() {
	s.lostCore()
	s.gone, s.hadWildcard, s.hadNames = nil, false, false
	if s.settling.Len() > 0 {
		for _, c := range s.inOrder() {
			if _, settling := s.settling.At(c); settling {
				c.replace(nil) // a stream cannot resume with a part of a set
				c.incomplete, c.hidden = false, false
			}
		}
		for key := range s.variants.of {
			if s.member(key) == nil {
				s.variants.drop(key)
			}
		}
	}
	s.settling, s.graces, s.nudges = cache.Expiries[*set]{}, cache.Expiries[*set]{}, nudges{}
	for _, c := range s.inOrder() {
		for key := range c.listed {
			s.drop(key)
		}
		c.listed, c.recalled, c.first, c.latest, c.lastPart = nil, false, firstAnswer{}, time.Time{}, time.Time{}
		c.large, c.overtaken, c.unsaid, c.renewed, c.invited = false, false, nil, false, nil
		if c.again {
			s.shown = "" // the control plane must send all of it
		}
		if c.lost(); !c.started && !c.wanted {
			s.forget(&c.subscription)
		}
	}
}

func (s *Sets) fail(sub *subscription, err *cache.Error, u *cache.Update) {
	sub.failure = err
	s.send(cache.SetUpdate{Name: sub.name, Err: err}, u)
}

func (s *Sets) failed(err *cache.Error, u *cache.Update) {
	for _, c := range s.inOrder() {
		if (c.isWildcard() || c.wanted) && !c.answered {
			s.fail(&c.subscription, err, u)
		}
	}
}

// waitAgain is for SotW: in delta silence does not mean absence.
func (s *Sets) waitAgain(now time.Time) {
	w := s.wildcard
	if !s.sotw || w == nil {
		return
	}
	s.waiting = nil
	if w.wanted && w.sent && !w.answered {
		w.failure = nil
		s.wait([]*subscription{&w.subscription}, now)
	}
}

// needStream reports whether a wildcard is wanted that was not in the first request of the stream, that was not
// answered in delta, or that in SotW must be requested once more. A response that was on its way would make its set
// look smaller than it is, and go-control-plane does not send again for a second wildcard what it
// has sent for the first.
func (s *Sets) needStream(begun bool) bool {
	w := s.wildcard
	return begun && w != nil && w.wanted && (s.late(&w.subscription) || w.again && s.sotw || w.silent)
}

func (s *Sets) late(sub *subscription) bool {
	return sub.name == cache.Wildcard && sub.wanted && !sub.sent
}

func (s *Sets) nextDue() (time.Time, bool) {
	at, _ := s.expiries.Next()
	settled, _ := s.settling.Next()
	complete, _ := s.graces.Next()
	at = earlier(earlier(at, settled), earlier(complete, s.nudges.at))
	return at, !at.IsZero()
}

// seed is for delta: only there a server reports each name that it does not have.
func (s *Sets) seed(now time.Time, held func(cache.Key, func(string, *cache.Resource))) {
	for _, c := range s.inOrder() {
		if !c.wanted || c.answered || c.members != nil {
			continue
		}
		held(cache.Key{Scope: s.scope, TypeURL: s.typeURL, Name: c.name}, func(key string, r *cache.Resource) {
			if r.Alias() || r.DoNotCache() {
				return // it is not known whose alias it is; or it may not be stored
			}
			if c.members == nil {
				c.members = cache.NewResources(0)
			}
			c.members.Put(key, r)
			c.answered, c.resumed = true, true
			if r.TTL() > 0 {
				s.expiries.Set(key, now.Add(r.TTL()))
			}
		})
	}
}

func (s *Sets) resend() cache.Update {
	u := s.NewUpdate()
	for _, c := range s.inOrder() {
		switch {
		case !c.isWildcard() && s.filters():
			s.restateGlob(c, nil, &u)
		case c.isWildcard() && !c.wanted, c.isWildcard() && c.answered && !c.started:
		case c.answered:
			u.Sets = append(u.Sets, c.restate())
		case c.failure != nil:
			s.fail(&c.subscription, c.failure, &u)
		}
	}
	return u
}

// Ends implements Subscriptions.
func (s *Sets) Ends(u *cache.Update) map[string]time.Time {
	if s.expiries.Len() == 0 {
		return nil
	}
	ends := map[string]time.Time{}
	for i := range u.Sets {
		s.endsOf(u.Sets[i].Changes, func(name string) string { return name }, ends)
	}
	return ends
}

func (s *Sets) holds(key string) *cache.Resource { return s.member(key) }

func (s *Sets) lastSeen(key string) uint64 {
	if _, inherited := s.inherited[key]; inherited {
		return s.before
	}
	return s.responses
}

func (s *Sets) concerns(v *resourceUpdate) bool {
	g := s.globOf(v.key)
	return g != nil && g.sent || s.wildcard != nil && s.wildcard.sent
}

func (s *Sets) endGrace(c *set) {
	s.graces.End(c)
	c.incomplete, c.latest, c.lastPart, c.large = false, time.Time{}, time.Time{}, false
}
