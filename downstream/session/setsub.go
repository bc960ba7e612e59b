package session

import (
	"github.com/xds-relay/xds-relay/cache"
)

// One client's subscriptions to sets: to the wildcard, and to glob collections.

// setSub is a client's subscription to a wildcard or a glob collection.
type setSub struct {
	cache.SetWatch
	subs *subscriptions
	set  *members     // nil if the wildcard can mean nothing
	err  *cache.Error // why
	// asked is how the client asks for it. The name is Wildcard, or the canonical one
	// of a glob without directives, of which spelled are the client's spellings.
	asked   asked
	spelled spellings
	fresh   bool // not answered yet; see setFresh
	errTold bool
	queued  bool // in subscriptions.pendingSets
	ended   bool
	inInbox bool // guarded by inbox.mu
	// lost: nothing is held of it, and its control plane cannot be reached.
	lost bool

	// SotW: told that it was in a full state, mayHold that the client may hold it from
	// an earlier stream, and moved that it was another set when it was told.
	told, mayHold, moved bool

	// Delta: initial are the versions of its members that the client holds, of what it
	// has not been told yet; named the members that it was told of by their names,
	// while the glob was not answered; uncovered, by their keys, the names that are to
	// be told as they are now.
	// lacks: it was answered while a part of it could not be had, so that what the
	// client holds and is missing in it was not told as gone.
	lacks     bool
	initial   map[string]string
	named     map[*nameSub]bool
	uncovered map[string]uncovered
}

// Changed implements cache.Watcher.
func (s *setSub) Changed() cache.Waker { return s.subs.Host.Mark(s) }

func (s *setSub) Enter() bool {
	was := s.inInbox
	s.inInbox = true
	return !was
}

func (s *setSub) Leave() { s.inInbox = false }

func (s *setSub) MoveToPending() {
	if s.ended {
		return
	}
	if s.redirected() {
		s.subs.moving = append(s.subs.moving, s)
	}
	if !s.queued {
		s.queued = true
		s.subs.pendingSets = append(s.subs.pendingSets, s)
	}
	s.subs.reckonSet(s)
}

func (s *setSub) status() (cache.Status, *cache.Error) {
	if s.set == nil {
		return cache.Failed, s.err
	}
	return s.set.Status()
}

// glob says that it is a glob collection.
func (s *setSub) glob() bool { return s.asked.name != cache.Wildcard }

// form is how the client is told the members.
func (s *setSub) form() cache.Form {
	if s.asked.locator {
		return s.subs.Form | cache.ByLocator
	}
	return s.subs.Form
}

// names are what the client calls the set.
func (s *setSub) names() []string {
	if s.glob() {
		return s.spelled.all()
	}
	return []string{cache.Wildcard}
}

// setFresh says whether the set has not been answered yet.
func (s *setSub) setFresh(fresh bool) {
	switch {
	case fresh && !s.fresh:
		s.subs.freshSets++
	case !fresh && s.fresh:
		s.subs.freshSets--
	}
	s.fresh = fresh
}

// again has all of the set told once more.
func (s *setSub) again() {
	if s.set != nil {
		s.set.Restart(&s.SetWatch)
	}
	s.setFresh(true)
	s.errTold, s.named = false, nil
	s.MoveToPending()
}

// subscribeWildcard begins the wildcard, or begins it anew. There is one at a time.
func (s *subscriptions) subscribeWildcard(a asked) {
	s.apart()
	if w := s.wild; w != nil && w.set != nil && w.asked == a {
		w.again()
		return
	}
	s.unsubscribeWildcard()
	s.wild = &setSub{subs: s, asked: a}
	s.wild.setFresh(true)
	key, err := s.lookUp(a)
	if err == nil {
		err = s.Host.Enter(key)
	}
	if err != nil {
		s.wild.err = asError(err)
		s.Host.Refused(s.typeURL, a.name, err)
	} else {
		s.wild.set = &members{Set: s.Topics.WatchSet(key, s.wild)}
	}
	s.wild.MoveToPending()
}

func (s *subscriptions) unsubscribeWildcard() {
	if s.wild != nil {
		s.endSet(s.wild)
	}
	s.wild = nil
}

// subscribeGlob begins the glob with that key, or begins it anew. It is known as id. Two spellings of
// one glob are one: its members have the names that the origin gave them. So are two
// that differ in their directives, which their members do not have: the one that was
// there first counts.
func (s *subscriptions) subscribeGlob(a, id asked, key cache.Key) *setSub {
	s.apart()
	set := s.byGlob[id.key()]
	if set == nil {
		set = &setSub{subs: s, asked: id}
		set.setFresh(true)
		set.set = membersOf(s.Topics.WatchSet(key, set), &set.SetWatch, id.name)
		s.addGlob(set)
		set.MoveToPending()
	} else {
		set.again()
	}
	set.spelled.add(a.name)
	s.globs[a.key()] = set
	s.countParams(a, 1)
	return set
}

// unsubscribeGlob ends a spelling of a glob. It returns the glob if that ended too.
func (s *subscriptions) unsubscribeGlob(a asked) (ended *setSub) {
	set := s.globs[a.key()]
	delete(s.globs, a.key())
	s.countParams(a, -1)
	if set.spelled.remove(a.name); !set.spelled.none() {
		return nil
	}
	s.removeGlob(set)
	s.endSet(set)
	return set
}

func (s *subscriptions) endSet(set *setSub) {
	set.ended = true
	set.setFresh(false)
	s.countLostSet(set, false)
	if set.set != nil {
		s.Host.Leave(set.set.Key())
		s.Topics.Unwatch(set)
	}
	// What has ended is not to pile up in a client that does not read.
	if len(s.pendingSets) > 2*len(s.byGlob)+minCompact {
		live := s.pendingSets[:0]
		for _, p := range s.pendingSets {
			if !p.ended {
				live = append(live, p)
			}
		}
		clear(s.pendingSets[len(live):])
		s.pendingSets = live
	}
}

// takePendingSets is takePending for sets.
func (s *subscriptions) takePendingSets(f func(*setSub) bool) {
	for len(s.pendingSets) > 0 {
		set := s.pendingSets[0]
		if !set.ended && !f(set) {
			return
		}
		set.queued = false
		s.pendingSets = s.pendingSets[1:]
	}
	s.pendingSets = nil
}

// namedIn is the subscription to a name, in the same way, that a set gives too.
func (s *subscriptions) namedIn(set *setSub, name string) *nameSub {
	return s.named.get(set.asked.of(name).key())
}
