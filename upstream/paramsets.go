package upstream

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// xDS: TP2. Who asks with different dynamic parameters asks over the same stream,
// and a variant that comes on it is for all whose parameters match.

// paramSets are the subscriptions of one type on one stream: a set for each choice of
// dynamic parameters. A session tells the control plane of all of them.
type paramSets struct {
	scope   cache.Scope // without parameters
	typeURL string
	noGlobs bool // of each set
	server  any  // of each set
	habits  *habits
	// modest says whether a name is asked for by somebody whose names of the type are at
	// most so many bytes. Nil if nobody is.
	modest func(cache.Key, int64) bool
	speaks func(authority string) bool // see Options.Speaks
	list   []*subscriptions            // by their parameters; who has none comes first
	// interests are those of each set, nil if there has been only one on the stream.
	interests interests
	// responses counts the responses, as each set does.
	responses uint64

	// Of the present stream:
	live, sotw bool
	before     uint64 // responses, before it
	mixed      bool   // there have been several sets
	left       leftNames
	// reviewAt is when it is seen whether what was refused has room now, zero if nothing
	// was.
	reviewAt time.Time
	// forgetAt is when what was given up is forgotten, zero if there is nothing.
	forgetAt time.Time
}

func newParamSets(scope cache.Scope, typeURL string) *paramSets {
	scope.Params = ""
	return &paramSets{scope: scope, typeURL: typeURL, habits: new(habits)}
}

// find returns the set of those parameters, nil if there is none.
func (s *paramSets) find(params string) *subscriptions {
	if i, found := s.search(params); found {
		return s.list[i]
	}
	return nil
}

func (s *paramSets) search(params string) (at int, found bool) {
	return slices.BinarySearchFunc(s.list, params, func(subs *subscriptions, params string) int {
		return strings.Compare(subs.scope.Params, params)
	})
}

// of returns the set of those parameters, new if there is none.
func (s *paramSets) of(params string) *subscriptions {
	i, found := s.search(params)
	if !found {
		scope := s.scope
		scope.Params = params
		subs := newSubscriptions(scope, s.typeURL)
		subs.server, subs.origin = s.server, cache.NewOriginVersion(s.server, "")
		subs.responses, subs.noGlobs, subs.habits = s.responses, s.noGlobs, s.habits
		if s.live {
			subs.opened(s.sotw)
			subs.before = s.before
		}
		s.list = slices.Insert(s.list, i, subs)
		s.mixed = s.mixed || len(s.list) > 1
		if subs.interests = s.interests; subs.interests == nil {
			s.share()
		}
	}
	return s.list[i]
}

// opened begins a new stream.
func (s *paramSets) opened(sotw bool) {
	s.live, s.sotw = true, sotw
	s.before, s.mixed, s.left, s.forgetAt = s.responses, len(s.list) > 1, leftNames{}, time.Time{}
	for _, subs := range s.list {
		subs.opened(sotw)
		if s.mixed || subs.params != nil {
			subs.inherit()
		}
	}
}

// lost ends the stream. Sets of which nothing is wanted end with it.
func (s *paramSets) lost() {
	s.live, s.reviewAt = false, time.Time{}
	for _, subs := range s.list {
		subs.lost()
		if s.mixed {
			// What was held under it may have come for others.
			subs.shown = ""
		}
	}
	s.list = slices.DeleteFunc(s.list, func(subs *subscriptions) bool { return subs.wanted == 0 })
	s.unshare()
	s.share()
}

// prune drops the sets of which nothing is left. Clients choose parameters as they
// like, and a stream may last.
func (s *paramSets) prune() {
	if len(s.list) > 1 {
		s.list = slices.DeleteFunc(s.list, func(subs *subscriptions) bool {
			return subs.wanted == 0 && subs.wildcard == nil && len(subs.names) == 0
		})
	}
}

// wanted counts the names and wildcards that have not been given up.
func (s *paramSets) wanted() (n int) {
	for _, subs := range s.list {
		n += subs.wanted
	}
	return n
}

// wantedParams returns the dynamic parameters with which something is wanted.
func (s *paramSets) wantedParams() (params []string) {
	for _, subs := range s.list {
		if subs.wanted > 0 && subs.params != nil {
			params = append(params, subs.scope.Params)
		}
	}
	return params
}

// hasWildcard says whether a wildcard is subscribed to.
func (s *paramSets) hasWildcard() bool {
	return slices.ContainsFunc(s.list, func(subs *subscriptions) bool { return subs.wildcard != nil })
}

// needStream says that a set needs a new stream.
func (s *paramSets) needStream(begun bool) bool {
	return slices.ContainsFunc(s.list, func(subs *subscriptions) bool { return subs.needStream(begun) })
}

// start begins a subscription of one set. What another set has been given and
// matches is for this one too: a control plane that has sent a variant over the
// stream need not send it again.
func (s *paramSets) start(subs *subscriptions, name string, down *cache.Error, u *cache.Update) {
	if len(s.list) > 1 && name != cache.Wildcard && subs.names[name] == nil && subs.holds(name) == nil {
		s.adopt(subs, name)
	}
	subs.start(name, down, u)
}

// adopt gives a set what another holds under a name, if it matches.
func (s *paramSets) adopt(subs *subscriptions, name string) {
	var from *subscriptions
	var found *cache.Resource
	for o := range s.among(name) {
		if sub := o.names[name]; o == subs || sub != nil && (sub.via != "" || sub.doubted) || s.live && o.isInherited(name) {
			continue
		}
		r := o.held(name)
		if r == nil || r.DoNotCache() || found != nil && cmp.Or(cmp.Compare(found.Constraints(), r.Constraints()), cmp.Compare(from.scope.Params, o.scope.Params)) <= 0 {
			continue // of several that match, it is always the same one
		}
		if c, err := parseConstraints(r.Constraints()); err == nil && c.match(subs.params) {
			from, found = o, r
		}
	}
	if found == nil {
		return
	}
	seen := subs.responses
	if sub := from.names[name]; sub != nil {
		seen = sub.seen
	}
	subs.keep(&subscription{
		name: name, answered: true, answer: cache.Change{Name: name, Resource: found, Origin: subs.versionOf()}, seen: seen,
	})
	if at, ok := from.expiries.At(name); ok {
		subs.expiries.Set(name, at)
	}
}

// apply takes a response's verdicts, for each set what concerns it.
func (s *paramSets) apply(now time.Time, v *verdicts, sotw bool, version string) []cache.Update {
	updates := make([]cache.Update, 0, len(s.list))
	s.responses++
	if !s.mixed && len(s.list) == 1 {
		return append(updates, s.list[0].apply(now, v, sotw, version))
	}
	for i, subs := range s.list {
		subs.place = i
	}
	aim := s.aim(now, v)
	for i, subs := range s.list {
		of := aim.verdicts(i)
		switch {
		case len(v.list) == 0 && v.wildcard != of.wildcard:
			subs.responses++ // nothing but an error of others
		case !sotw && len(of.list)+len(of.globs) == 0 && subs.wildcard == nil:
			subs.passed(&of, version)
		default:
			updates = append(updates, subs.apply(now, &of, sotw, version))
		}
	}
	return updates
}

// waitAnew is [subscriptions.waitAnew] of each set, in SotW: in delta silence says
// nothing, whenever it begins.
func (s *paramSets) waitAnew(now time.Time) {
	if !s.sotw {
		return
	}
	for _, subs := range s.list {
		subs.waitAnew(now)
	}
}

// newUpdates makes an update for each set with what tell adds to it.
func (s *paramSets) newUpdates(tell func(subs *subscriptions, u *cache.Update)) []cache.Update {
	updates := make([]cache.Update, 0, len(s.list))
	for _, subs := range s.list {
		u := subs.newUpdate()
		tell(subs, &u)
		updates = append(updates, u)
	}
	return updates
}

// failed tells those that are still without an answer why.
func (s *paramSets) failed(err *cache.Error) []cache.Update {
	return s.newUpdates(func(subs *subscriptions, u *cache.Update) { subs.failed(err, u) })
}

// expire tells what has come about by time alone.
func (s *paramSets) expire(now time.Time) []cache.Update {
	if at := s.forgetAt; !at.IsZero() && !now.Before(at) {
		s.left, s.forgetAt = leftNames{}, time.Time{}
	}
	updates := make([]cache.Update, 0, len(s.list))
	for _, subs := range s.list {
		updates = append(updates, subs.expire(now))
	}
	return updates
}

// gaveUp notes that a name was given up of which a response may be on its way.
func (s *paramSets) gaveUp(now time.Time) { s.forgetAt = now.Add(onTheWay) }

// nextDue returns when expire will have something to tell or to drop.
func (s *paramSets) nextDue() (first time.Time, ok bool) {
	first, ok = s.earliest((*subscriptions).nextDue)
	if at := s.forgetAt; !at.IsZero() && (!ok || at.Before(first)) {
		first, ok = at, true
	}
	if at := s.reviewAt; !at.IsZero() && (!ok || at.Before(first)) {
		first, ok = at, true
	}
	return first, ok
}

// oldest returns since when the first of those that wait has been waiting.
func (s *paramSets) oldest() (time.Time, bool) {
	return s.earliest((*subscriptions).oldest)
}

func (s *paramSets) earliest(of func(*subscriptions) (time.Time, bool)) (first time.Time, ok bool) {
	for _, subs := range s.list {
		if at, is := of(subs); is && (!ok || at.Before(first)) {
			first, ok = at, true
		}
	}
	return first, ok
}
