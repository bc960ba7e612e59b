package session

import (
	"errors"
	"iter"
	"runtime"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// subscribe begins a subscription to a name or to a glob, or restarts it: the client may have forgotten what it was
// sent. It returns either the name's subscription or the glob's.
func (s *subscriptions) subscribe(a resourceRef) (*nameSub, *setSub) {
	if set := s.globs[a.key()]; set != nil {
		set.restart()
		return nil, set
	}
	if sub := s.named.get(a.key()); sub != nil && sub.refused() {
		s.unsubscribe(a.key()) // the limits may allow it now
	} else if sub != nil {
		if sub.sent() == sentResource {
			sub.Note = ofNoContent // the client has it from this stream, and gets it again
		} else {
			sub.setSent(sentNothing)
		}
		sub.setSentErr(0)
		sub.MoveToPending()
		return sub, nil
	}
	key, err := s.lookUpName(a)
	if err == nil {
		err = s.Host.Admits(key)
	}
	var glob resourceRef
	if err == nil && key.IsSet() {
		if glob = a.of(canonicalGlob(a.name)); s.byGlob[glob.key()] != nil {
			return nil, s.subscribeGlob(a, glob, key)
		}
	}
	if err == nil {
		err = s.Host.Enter(key)
	}
	if err == nil && key.IsSet() {
		return nil, s.subscribeGlob(a, glob, key)
	}
	return s.subscribeName(a, key, err), nil
}

// resume has the source request what a client holds by a name from an earlier stream, if nothing is known of it.
func (s *subscriptions) resume(sub *nameSub) {
	if entry := sub.entry(); entry != nil {
		s.Topics.Resume(entry)
	}
}

func (s *subscriptions) subscribeName(a resourceRef, key cache.Key, err error) *nameSub {
	sub := s.newSub()
	if a.locator || err != nil || key.Name != a.name {
		sub.newRare(a)
	}
	s.countParams(a, 1)
	if err != nil {
		sub.rare().err = asError(err)
		s.Host.Refused(s.typeURL, a.name, err)
		s.troubled().refused++
	} else if _, withheld := s.Topics.WatchInGroup(s.Host.Side(key), sub.watch()); withheld != nil {
		sub.makeRare().withheld = withheld
	}
	s.addName(sub)
	sub.MoveToPending()
	s.Begun()
	return sub
}

// Clients decide how many names they subscribe to. Each name takes microseconds, so after each namesPerTurn of them other
// goroutines run. The session's stream stays locked.
const namesPerTurn = 1 << 7

// yieldAfter lets other goroutines run after each namesPerTurn names.
func yieldAfter(names int) {
	if names > 0 && names%namesPerTurn == 0 {
		runtime.Gosched()
	}
}

// ManyNames is the number of subscriptions to names after which a session calls Host.ManyBegun.
const ManyNames = 1 << 10

// Begun implements Meaning.
func (s *subscriptions) Begun() {
	s.nBegun++
	if s.nBegun%ManyNames == 0 {
		s.Host.ManyBegun()
	}
	yieldAfter(int(s.nBegun))
}

func (s *subscriptions) addName(sub *nameSub) {
	s.named.add(sub)
	s.countBytes(sub.key(), 1)
}

// countBytes adds (n is 1) or subtracts (-1) the length of a name.
func (s *subscriptions) countBytes(name string, n int) {
	s.nameBytes += uint32(n * len(name)) //nolint:gosec // it may overflow
}

// removeSpelling removes a glob as the client spells it.
func (s *subscriptions) removeSpelling(a resourceRef) {
	delete(s.globs, a.key())
	s.countBytes(a.key(), -1)
	s.countParams(a, -1)
}

// countParams counts the subscriptions with the same dynamic parameters.
func (s *subscriptions) countParams(a resourceRef, n int) {
	if !a.locator {
		return
	}
	put(&s.params, a.params, s.params[a.params]+n)
	if s.params[a.params] == 0 {
		delete(s.params, a.params)
	}
}

// subsOf iterates over the subscriptions to a name. Locators can make several.
func (s *subscriptions) subsOf(name string) iter.Seq[*nameSub] {
	return func(yield func(*nameSub) bool) {
		if sub := s.named.get(name); sub != nil && !yield(sub) {
			return
		}
		for params := range s.params {
			if sub := s.named.get(resourceRef{name, true, params}.key()); sub != nil && !yield(sub) {
				return
			}
		}
	}
}

// unsubscribe ends a subscription to a name, and reports whether there was one.
func (s *subscriptions) unsubscribe(key string) bool {
	sub := s.named.get(key)
	if sub == nil {
		return false
	}
	s.unsubscribeName(sub)
	s.named.shared.giveUp(key)
	return true
}

// unsubscribeName ends a subscription to a name.
func (s *subscriptions) unsubscribeName(sub *nameSub) {
	s.countBytes(sub.key(), -1)
	s.named.remove(sub)
	s.countParams(sub.ref(), -1)
	s.end(sub)
	if len(s.pending) > 2*s.named.len()+minCompact {
		s.pending = slices.DeleteFunc(s.pending, func(sub *nameSub) bool { return sub.is(hasEnded) })
	}
}

func (s *subscriptions) end(sub *nameSub) {
	if sub.entry() != nil {
		s.Host.Leave(sub.entry().Key())
		s.Topics.Unwatch(sub.watch())
	} else {
		s.trouble.refused--
	}
	s.countLost(sub, false)
	if r := sub.rare(); r != nil {
		s.setAlias(sub, r, "")
		r.setBefore(nil)
		if r.deniedFor != 0 {
			s.trouble.deniedOwn--
		}
		delete(s.rares, sub)
		sub.set(isRare, false)
	}
	sub.set(hasEnded, true)
}

// Close ends all subscriptions.
func (s *subscriptions) Close() {
	if m := s.named.shared; m != nil {
		m.leave()
	}
	s.excludeNew()
	n := 0
	for sub := range s.named.own() {
		s.end(sub)
		n++
		yieldAfter(n)
	}
	for set := range s.sets() {
		s.endSet(set)
	}
	s.wild, s.byGlob = nil, nil
}

// asError returns a name's error in the form in which clients are sent it.
func asError(err error) *cache.Error {
	var e *cache.Error
	if errors.As(err, &e) {
		return e
	}
	return &cache.Error{Code: codes.NotFound, Message: err.Error()}
}

// subscribeWildcard begins the wildcard, or restarts it. There is one at a time.
func (s *subscriptions) subscribeWildcard(a resourceRef) {
	s.leaveGroup()
	if w := s.wild; w != nil && w.set != nil && w.ref == a {
		w.restart()
		return
	}
	s.unsubscribeWildcard()
	s.wild = &setSub{subs: s, ref: a}
	s.wild.setFresh(true)
	key, err := s.lookUp(a)
	if err == nil {
		err = s.Host.Enter(key)
	}
	if err != nil {
		s.wild.err = asError(err)
		s.Host.Refused(s.typeURL, a.name, err)
	} else {
		s.wild.set = s.wild.membersOf(s.Topics.WatchSet(s.Host.Side(key), s.wild))
	}
	s.wild.MoveToPending()
}

func (s *subscriptions) unsubscribeWildcard() {
	if s.wild != nil {
		s.endSet(s.wild)
	}
	s.wild = nil
}

// subscribeGlob begins the glob with that key, or restarts it. It is stored under id. Two spellings of one glob are one
// subscription: its members have the names that the origin gave them. So are two globs that differ only in their
// directives, which their members do not have: the first one counts.
func (s *subscriptions) subscribeGlob(a, id resourceRef, key cache.Key) *setSub {
	s.leaveGroup()
	set := s.byGlob[id.key()]
	if set == nil {
		set = &setSub{subs: s, ref: id}
		set.setFresh(true)
		set.set = set.membersOf(s.Topics.WatchSet(s.Host.Side(key), set))
		s.addGlob(set)
		set.MoveToPending()
	} else {
		set.restart()
	}
	set.spelled.add(a.name)
	put(&s.globs, a.key(), set)
	s.countBytes(a.key(), 1)
	s.countParams(a, 1)
	return set
}

// unsubscribeGlob ends a spelling of a glob. It returns the glob if that has ended, too.
func (s *subscriptions) unsubscribeGlob(a resourceRef) (ended *setSub) {
	set := s.globs[a.key()]
	s.removeSpelling(a)
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
	// Ended subscriptions must not pile up for a client that does not read.
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

// joinGroup subscribes to the names of a list as a member of its group, and reports whether that is possible. There
// must be no other subscription. before has what the client holds of the names, nil for nothing.
func (s *subscriptions) joinGroup(list NameList, mayHold bool, before *heldNames) bool {
	first, err := s.lookUp(refByName(list.All()[0]))
	if err != nil || first.Scope.Derived != "" || first.IsSet() {
		return false
	}
	g := list.Group(GroupKind{First: first, Form: s.sharedForm(), SotW: s.sotw}, s, s.Topics.Cache())
	if g == nil {
		return false
	}
	m := &membership{Member: Member{Host: s.Host}, subs: s, group: g, mayHold: mayHold, before: before}
	if mayHold {
		g.Resume(s.Topics)
	}
	bytes, individual := g.Enter(&m.Member)
	tooLarge := bytes+responseOverhead+len(s.typeURL) > s.Limit // for one response
	entered := s.Host.Enter(first) == nil
	if !entered || tooLarge || s.Host.Side(first).Scope.New {
		m.leaveMembers() // each name is sent, or refused, individually
		if entered {
			s.Host.Leave(first)
		}
		return false
	}
	s.named.shared = m
	s.Topics.Include(m.first())
	for _, i := range individual {
		if m.has(i) {
			m.take(i)
		}
	}
	return true
}

// Subscribed returns the number of names and globs that the client has subscribed to.
func (s *subscriptions) Subscribed() int { return s.named.len() + len(s.globs) }

// SubscribedAlone returns how many of these the client does not share with others that have sent the same list of
// names.
func (s *subscriptions) SubscribedAlone() int { return s.named.table.Len() + len(s.globs) }

// NameBytes returns the length of these names, in bytes.
func (s *subscriptions) NameBytes() int { return int(s.nameBytes) }

// SharedList returns the list that the client shares with others, nil if there is none.
func (s *subscriptions) SharedList() NameList {
	if m := s.named.shared; m != nil {
		return m.group.List()
	}
	return nil
}
