package upstream

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/xdstype"
)

// What is wanted of one type, and what is known of it, whichever protocol and
// stream it came over.

// subscription is the interest in one name, in the wildcard or in a glob.
type subscription struct {
	name string
	// started says that the cache wants it, and wanted that the control plane is to be
	// asked for it: not for a glob that is fed from the wildcard, but for that. Once it
	// was given up it is kept only until the control plane has been told.
	started, wanted bool
	// set is of the wildcard and of globs, and nil of names.
	set *set

	// Of the present stream:
	sent  bool // asked for
	first bool // in the first request of its type
	ask   int  // the last waiting in which it is
	// fulls is subscriptions.fulls when it was asked for.
	fulls uint64
	// left, in SotW, says that it was given up not long ago. If it is wanted again,
	// a response without it may be one that was sent in between.
	left bool
	// refused says that it is not asked for, because a request has no room for it.
	refused bool
	// failure is why there is no answer, if that was told.
	failure *cache.Error

	// answered says that answer holds. It does not end with the stream.
	answered bool
	answer   cache.Change // of a name, not of a set
	seen     uint64       // the last response that had it
	// via is the name of the resource of which this is an alias, if answer came by
	// that.
	via string
	// again says that it is to be asked for once more, and anew that it was and has
	// not been answered since.
	again, anew bool
	// resumed says that a client holds it from an earlier stream, and listed that the
	// control plane was told so although it is not held here. See resumed.go.
	resumed, listed bool
	// expired says that it was not gone for the control plane, but its TTL passed.
	expired bool
	// reported says that answer.Err is the control plane's own. It says so once,
	// and means it until it sends the resource (resource_errors).
	reported bool
}

// subscriptions are those of one type, and what is held of them.
type subscriptions struct {
	scope   cache.Scope
	typeURL string
	params  cache.Params // the scope's

	// noGlobs says that the control plane is not to be asked for globs.
	noGlobs bool
	// modest says whether a name is asked for by a client whose names of the type take at
	// most so many bytes. It is nil if there is nothing to ask.
	modest func(cache.Key, int64) bool
	speaks func(authority string) bool // see Options.Speaks

	names    map[string]*subscription
	room     cache.Room // of names
	near     directories
	wildcard *subscription            // nil if there is none
	globs    map[string]*subscription // those that are fed from the wildcard, too
	globRoom cache.Room               // of globs
	wanted   int                      // of all three, how many are started

	// shown is the version_info under which what is held came, for SotW. Empty
	// if the last response was not accepted, or something came without one.
	shown string
	// server is the control plane, for cache.OriginVersion. origin is the present version;
	// in SotW having is how many names have it, or have had it. now is that of the
	// response that is being taken. See versions.go.
	server      any
	origin, now *cache.OriginVersion
	having      int
	// hidden: the last response had something bad whose name is not known.
	hidden bool
	// expiries are of what is held and has a TTL.
	expiries cache.Expiries[string]
	// claims are which resources list the names as aliases.
	claims claims
	// variants are those that match of names that have several, ambiguous the names
	// of which more than one does, and warnings those of which nobody was told yet.
	variants  map[string][]variant
	ambiguous map[string]bool
	warnings  []string
	// responses counts the responses, for subscription.seen, and fulls those of them
	// that were the whole state.
	responses, fulls uint64

	// Of the present stream:
	live    bool
	sotw    bool
	changed []*subscription // wanted or given up since the last request
	waiting []waiting       // in the order of their time
	asks    int             // how many there have been
	before  uint64          // responses that came before the stream
	// inherited are the members that came before the stream and not since, see
	// inherit.
	inherited map[string]struct{}
	// refusals are what is to be told of what was refused, and reviewAt is when it is seen
	// whether that has room now, zero if nothing was refused.
	refusals cache.Update
	reviewAt time.Time
	// forgetAt is when what was given up is forgotten, zero if there is nothing.
	forgetAt time.Time
	// gone are the last few that were given up.
	gone []string
	// settling are the sets that are not known to be complete, and when what has come
	// counts as all of each.
	settling cache.Expiries[*set]
	habits   *habits // of the control plane
	// graces are when the first answers that are incomplete count as complete.
	graces cache.Expiries[*set]
	// unlisted: a resumed name may be without an answer because it was not listed, and
	// relist: one is, so that a new stream is needed.
	unlisted, relist bool
}

// waiting are names that were asked for at one time.
type waiting struct {
	ask   int
	since time.Time
	subs  []*subscription
}

func newSubscriptions(scope cache.Scope, typeURL string) *subscriptions {
	return &subscriptions{
		origin: cache.NewOriginVersion(nil, ""), habits: new(habits),
		scope: scope, typeURL: typeURL, params: cache.ParseParams(scope.Params),
		names: map[string]*subscription{}, globs: map[string]*subscription{},
	}
}

// newUpdate returns an update in which nothing has happened yet.
func (s *subscriptions) newUpdate() cache.Update {
	return cache.Update{Scope: s.scope, TypeURL: s.typeURL, Origin: s.origin}
}

func (s *subscriptions) get(name string) *subscription {
	switch {
	case name == cache.Wildcard:
		return s.wildcard
	case isGlob(name):
		return s.globs[name]
	}
	return s.names[name]
}

// add adds a subscription that there is not yet.
func (s *subscriptions) add(name string) *subscription {
	sub := &subscription{name: name}
	switch {
	case name == cache.Wildcard:
		sub.set = &set{sub: sub}
		s.wildcard = sub
	case isGlob(name):
		sub.set = &set{sub: sub}
		s.globs[name] = sub
	default:
		s.keep(sub)
		s.know(sub)
	}
	return sub
}

// know gives a new name what sets have of it. The control plane must send it again
// now that it is asked for by name too, but go-control-plane does not, having sent it
// already.
func (s *subscriptions) know(sub *subscription) {
	if r := s.member(sub.name); r != nil && !r.DoNotCache() {
		sub.answered, sub.answer = true, cache.Change{Name: sub.name, Resource: r, Origin: s.versionOf()}
		return
	}
	if err := s.refusedBy(sub.name); err != nil {
		sub.answered, sub.reported, sub.answer = true, true, cache.Change{Name: sub.name, Err: err}
	}
}

// start notes that a name is wanted, and adds to the update what is known of it
// already: what is held of it, or that it cannot be had for the reason down.
func (s *subscriptions) start(name string, down *cache.Error, u *cache.Update) {
	sub := s.get(name)
	if sub == nil {
		sub = s.add(name)
	}
	if !sub.started {
		sub.started = true
		s.wanted++
	}
	s.want(sub)
	if sub.set != nil && sub != s.wildcard && s.filters() {
		s.needWildcard()
		s.restateGlob(sub, down, u)
		return
	}
	if r := sub.answer.Resource; sub.answered && r != nil && r.DoNotCache() {
		s.refresh(sub)
		sub.answered = false
	}
	switch {
	case sub.answered && sub.set != nil:
		u.Sets = append(u.Sets, sub.set.restate())
	case sub.answered:
		u.Changes = append(u.Changes, sub.answer)
	case down != nil:
		s.fail(sub, down, u)
	case sub.failure != nil:
		s.fail(sub, sub.failure, u)
	}
}

// again asks anew for a name that is held, but not for everybody.
func (s *subscriptions) again(name string, down *cache.Error, u *cache.Update) {
	sub := s.get(name)
	if sub == nil || !sub.started {
		return
	}
	if down != nil {
		s.fail(sub, down, u)
	}
	if !sub.wanted {
		sub = s.wildcard // which feeds it
	}
	s.refresh(sub)
}

// refresh has a name asked for once more, if it was.
func (s *subscriptions) refresh(sub *subscription) {
	if sub.sent && !sub.again {
		sub.again = true
		s.touch(sub)
	}
}

// stop notes that a name is not wanted any more.
func (s *subscriptions) stop(name string) {
	sub := s.get(name)
	if sub == nil || !sub.started {
		return
	}
	sub.started = false
	s.wanted--
	s.want(sub)
	if sub.set != nil && sub != s.wildcard && s.filters() {
		s.forget(sub)
		s.needWildcard()
	}
}

// want brings what the control plane is asked for in line with what was started.
func (s *subscriptions) want(sub *subscription) {
	wanted := s.due(sub)
	if sub.wanted == wanted {
		return
	}
	sub.wanted = wanted
	if wanted || sub.sent {
		s.touch(sub)
	} else {
		s.forget(sub)
	}
}

func (s *subscriptions) touch(sub *subscription) {
	if s.live {
		s.changed = append(s.changed, sub)
	}
}

// forget drops what was given up.
func (s *subscriptions) forget(sub *subscription) {
	s.noteGone(sub.name)
	if sub.set != nil {
		if sub == s.wildcard {
			s.wildcard = nil
		} else {
			s.globs = cache.Without(s.globs, &s.globRoom, sub.name)
			if len(s.globs) == 0 {
				s.near = directories{} // until the next one
			}
		}
		s.settling.End(sub.set)
		for key, r := range sub.set.members.All() {
			s.leave(key, r)
		}
		s.release(sub.set)
		return
	}
	s.names = cache.Without(s.names, &s.room, sub.name)
	s.near.remove(sub)
	s.unalias(sub.name)
	if r := sub.answer.Resource; r != nil {
		s.leave(sub.name, r)
	}
	if s.member(sub.name) == nil {
		s.drop(sub.name)
	}
}

// sorted returns the names that have not been given up, in order.
func (s *subscriptions) sorted() []string {
	names := make([]string, 0, len(s.names))
	for name, sub := range s.names {
		if sub.wanted {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// opened begins a new stream: everything is to be asked for anew.
func (s *subscriptions) opened(sotw bool) {
	filtered := s.filters()
	s.formed(sotw)
	s.live, s.before, s.inherited, s.forgetAt = true, s.responses, nil, time.Time{}
	if s.params != nil {
		s.inherit()
	}
	if s.filters() != filtered {
		s.reroute()
		s.changed = nil
	}
	if s.wildcard != nil {
		s.changed = append(s.changed, s.wildcard)
	}
	for _, name := range slices.Sorted(maps.Keys(s.globs)) {
		s.changed = append(s.changed, s.globs[name])
	}
	for _, name := range s.sorted() {
		s.changed = append(s.changed, s.names[name])
	}
}

// inherit takes note of which members are from before the stream. It matters where
// there are dynamic parameters.
func (s *subscriptions) inherit() {
	members := s.allMembers()
	s.inherited = make(map[string]struct{}, len(members))
	for key := range members {
		s.inherited[key] = struct{}{}
	}
}

// lost ends the stream. Nothing that is known is lost with it.
func (s *subscriptions) lost() {
	s.live, s.changed, s.waiting, s.gone, s.reviewAt = false, nil, nil, nil, time.Time{}
	s.unlisted, s.relist = false, false
	if s.settling.Len() > 0 {
		for sub := range s.all() {
			if _, settling := s.settling.At(sub.set); settling {
				sub.set.replace(nil) // a part of it is nothing to resume with
				sub.set.incomplete, sub.set.hidden = false, false
			}
		}
		s.forgetVariants()
	}
	s.settling, s.graces = cache.Expiries[*set]{}, cache.Expiries[*set]{}
	s.near = directories{}
	for sub := range s.all() {
		if sub.set != nil {
			sub.set.listed, sub.set.first, sub.set.latest, sub.set.part = nil, firstAnswer{}, time.Time{}, time.Time{}
		}
		if sub.again {
			s.shown = "" // all of it is to come
		}
		if sub.left {
			sub.answered = false // it was not certain, and is asked for as if new
		}
		sub.sent, sub.first, sub.left, sub.again, sub.anew = false, false, false, false, false
		if !sub.started && !sub.wanted {
			s.forget(sub)
		}
	}
}

// all yields the wildcard, all globs and all names.
func (s *subscriptions) all() func(yield func(*subscription) bool) {
	return func(yield func(*subscription) bool) {
		if s.wildcard != nil && !yield(s.wildcard) {
			return
		}
		for _, sub := range s.globs {
			if !yield(sub) {
				return
			}
		}
		for _, sub := range s.names {
			if !yield(sub) {
				return
			}
		}
	}
}

// failed tells those that are still without an answer why.
func (s *subscriptions) failed(err *cache.Error, u *cache.Update) {
	if w := s.wildcard; w != nil && !w.answered {
		s.fail(w, err, u)
	}
	for _, name := range slices.Sorted(maps.Keys(s.globs)) {
		if sub := s.globs[name]; sub.wanted && !sub.answered {
			s.fail(sub, err, u)
		}
	}
	for _, name := range s.sorted() {
		if sub := s.names[name]; !sub.answered {
			s.fail(sub, err, u)
		}
	}
}

func (s *subscriptions) fail(sub *subscription, err *cache.Error, u *cache.Update) {
	sub.failure = err
	if sub.set != nil {
		s.tellSet(cache.SetUpdate{Name: sub.name, Err: err}, u)
		return
	}
	u.Changes = append(u.Changes, cache.Change{Name: sub.name, Err: err})
}

// ask notes that subscriptions went out in a request. A subscription that has
// an answer from a stream before does not wait for one: if nothing has changed,
// there may be none.
func (s *subscriptions) ask(subs []*subscription, first bool, now time.Time) {
	s.asks++
	w := waiting{ask: s.asks, since: now}
	for _, sub := range subs {
		sub.sent, sub.first, sub.failure, sub.fulls = true, first, nil, s.fulls
		if sub.set != nil {
			sub.set.asked = now
			s.awaitRest(sub.set, now)
		}
		if s.waits(sub) {
			sub.ask = w.ask
			w.subs = append(w.subs, sub)
		}
	}
	if len(w.subs) > 0 {
		s.waiting = append(s.waiting, w)
	}
}

// waits says that an answer is to come for a subscription that was sent.
func (s *subscriptions) waits(sub *subscription) bool {
	return !sub.answered || sub.left && xdstype.Of(s.typeURL).FullState
}

// waitAnew has all that is without an answer wait for it from now on, in SotW: in delta
// silence says nothing, whenever it begins.
func (s *subscriptions) waitAnew(now time.Time) {
	if !s.sotw {
		return
	}
	s.asks++
	w := waiting{ask: s.asks, since: now}
	add := func(sub *subscription) {
		if sub != nil && sub.wanted && sub.sent && s.waits(sub) {
			sub.ask, sub.failure = w.ask, nil
			w.subs = append(w.subs, sub)
		}
	}
	add(s.wildcard)
	for _, name := range slices.Sorted(maps.Keys(s.globs)) {
		add(s.globs[name])
	}
	for _, name := range s.sorted() {
		add(s.names[name])
	}
	s.waiting = nil
	if len(w.subs) > 0 {
		s.waiting = append(s.waiting, w)
	}
}

// overdue returns those that have been waiting since then or longer, and
// forgets that they wait.
func (s *subscriptions) overdue(then time.Time) []*subscription {
	var subs []*subscription
	for len(s.waiting) > 0 && !s.waiting[0].since.After(then) {
		w := &s.waiting[0]
		for _, sub := range w.subs {
			if sub.ask == w.ask && sub.wanted && sub.sent && (!sub.answered || sub.left) && sub.failure == nil {
				subs = append(subs, sub)
			}
		}
		s.waiting[0] = waiting{} // else it lasts as long as the slice's memory
		s.waiting = s.waiting[1:]
	}
	return subs
}

// oldest returns since when the first of those that wait has been waiting.
func (s *subscriptions) oldest() (time.Time, bool) {
	if len(s.waiting) == 0 {
		return time.Time{}, false
	}
	return s.waiting[0].since, true
}

// needStream says that a new stream is needed: to ask for resumed names (see resumed.go), or
// because a wildcard is wanted that was not in the first request of the stream, or in SotW is to be asked for once more, and so needs a new one. A response
// that was on its way would make its set look smaller than it is, go-control-plane does
// not send to a second wildcard what it has sent to the first, and in SotW no names do not
// mean the wildcard once there have been some.
func (s *subscriptions) needStream(begun bool) bool {
	w := s.wildcard
	return begun && (s.relist || w != nil && w.wanted && (s.late(w) || w.again && s.sotw))
}

// late says, of a stream whose first request was sent, that a subscription is a wildcard
// that has to wait for the next stream.
func (s *subscriptions) late(sub *subscription) bool {
	return sub == s.wildcard && sub.wanted && !sub.sent
}

// silent tells of a name that a SotW control plane does not answer, which answers
// others. What is held of it stays.
func (s *subscriptions) silent(sub *subscription, timeout time.Duration, u *cache.Update) {
	err := noAnswer(timeout)
	err.Unanswered = true
	if !sub.answered {
		sub.via = ""
	}
	sub.answered = true
	sub.answer = cache.Change{Name: sub.name, Resource: sub.answer.Resource, Err: err}
	u.Changes = append(u.Changes, sub.answer)
}

// isSilent says that the last there is to tell of a name is that.
func (sub *subscription) isSilent() bool {
	return sub.answered && sub.answer.Err != nil && sub.answer.Err.Unanswered
}

// noAnswer is what a name is told that the control plane does not answer.
func noAnswer(timeout time.Duration) *cache.Error {
	return &cache.Error{
		Code:    codes.DeadlineExceeded,
		Message: "the control plane has given no answer for " + timeout.String(),
	}
}
