package upstream

import (
	"maps"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Which of the sets on a stream a part of a response is about, where that is not
// for dynamic parameter constraints to say.

// aim is what of a response concerns whom.
type aim struct {
	v *verdicts
	// of are, for each set, the indexes in v.list of what is about it.
	of [][]int
	// spared is, for each set, how much of it is not about it though it has to do with
	// the names; changes is how much of it all is no heartbeat.
	spared  []int
	changes int
	// wildcard says, for each set, that what is said of the wildcard is about it.
	wildcard []bool
	// slow says, for each set, that there may be more to come of its wildcard.
	slow []bool
	// globs is, for each set, what is said of globs that is about it.
	globs [][]verdict
}

// aim finds out what a response is about.
func (s *paramSets) aim(now time.Time, v *verdicts) aim {
	n := len(s.list)
	a := aim{
		v: v, of: make([][]int, n), spared: make([]int, n),
		wildcard: make([]bool, n), slow: make([]bool, n),
		globs: make([][]verdict, n),
	}
	for i := range v.globs {
		for _, of := range s.concerned(v.globs[i].key) {
			a.globs[of] = append(a.globs[of], v.globs[i])
		}
	}
	var come map[string][]*verdict // the variants in the response, once it matters
	for i := range v.list {
		p := &v.list[i]
		if !p.heartbeat {
			a.changes++
		}
		interested := s.interested(p.key, p.aliases...)
		var spared []int
		if p.constraints == "" && p.resource == nil {
			if come == nil {
				come = v.variants()
			}
			spared = s.spared(now, p, come[p.key], interested)
			slices.Sort(spared)
		}
		for _, of := range interested {
			if _, is := slices.BinarySearch(spared, of); is {
				a.spared[of]++
			} else {
				a.of[of] = append(a.of[of], i)
			}
		}
	}
	waiting := 0
	for i, subs := range s.list {
		if w := subs.wildcard; w != nil && w.sent && !w.answered {
			waiting++
			a.wildcard[i], a.slow[i] = true, true // what comes first may be the answer to others
		}
	}
	for i, subs := range s.list {
		a.wildcard[i] = a.wildcard[i] || waiting == 0 && subs.wildcard != nil
	}
	return a
}

// concerned returns the sets that something said of a glob is about: those that wait
// for an answer to it, and if there is none all that have it.
func (s *paramSets) concerned(glob string) []int {
	var have, wait []int
	for _, i := range s.interested(glob) {
		switch sub := s.list[i].globs[glob]; {
		case sub == nil || !sub.sent:
		case sub.set.members == nil:
			wait = append(wait, i)
		default:
			have = append(have, i)
		}
	}
	if len(wait) > 0 {
		return wait
	}
	return have
}

// spared returns those of the sets that have to do with a name that something said of it
// does not concern, or not yet, when it is said without constraints and there is no
// resource.
//
// A variant that has constraints is removed under those, or changes with them. So
// it is about who has been given what has none, and else it is the answer to who
// has asked in vain; if there are several of those, it may be about one of them, and
// whoever gets nothing within the time of an answer was meant too. Who has a variant
// from an earlier stream and nothing yet from this one may be one of them.
func (s *paramSets) spared(now time.Time, v *verdict, come []*verdict, interested []int) (spared []int) {
	var of [toAll][]int
	for _, i := range interested {
		role := s.list[i].role(v.key, come)
		of[role] = append(of[role], i)
	}
	waiting, candidates := of[toWaiting], len(of[toWaiting])+len(of[toAgain])
	if s.left.has(v.key, now) {
		candidates++
	}
	switch held := len(of[toHolder]) > 0; {
	case v.gone && len(waiting) > 0 && (held || candidates > 1):
		for _, i := range waiting {
			subs := s.list[i]
			subs.doubt(subs.names[v.key], now)
		}
		return slices.Concat(waiting, of[toIdle], of[toOthers], of[toGiven], of[toListed])
	case held || candidates > 0:
		return slices.Concat(of[toIdle], of[toOthers], of[toGiven], of[toListed])
	}
	return slices.Concat(of[toOthers], of[toGiven])
}

// role is what something that is said of a name without constraints is to a set.
type role int

const (
	toHolder  role = iota // it has been given what has no constraints
	toWaiting             // it has asked, and there is to be an answer
	toListed              // it has a variant from an earlier stream, which was listed
	toIdle                // it was told that there is nothing
	toAgain               // it was told so on an earlier stream, and has asked again
	toGiven               // it has been given a variant
	toChanged             // it is given one with this, in the place of what goes
	toOthers              // it has not asked yet
	toAll
)

func (s *subscriptions) role(key string, come []*verdict) role {
	sub, held := s.names[key], s.holds(key)
	unlimited := held != nil && held.Constraints() == ""
	switch {
	case slices.ContainsFunc(come, s.matches):
		return toChanged
	case unlimited && sub != nil && sub.seen > s.before:
		return toHolder // also if it came before it was asked for
	case sub != nil && !sub.sent && s.wildcard == nil:
		return toOthers
	case held == nil && sub == nil:
		return toOthers
	case unlimited:
		return toHolder
	case sub != nil && (!sub.answered || sub.vague):
		return toWaiting
	case held != nil && s.isInherited(key):
		return toListed
	case held != nil:
		return toGiven
	case sub.seen <= s.before:
		return toAgain
	}
	return toIdle
}

// leftNames are names that were given up before they had been given anything: there
// may be an answer on its way.
type leftNames struct {
	at    map[string]time.Time
	purge int // how many there are when the old ones are dropped
}

// onTheWay is for how long an answer may be on its way.
const onTheWay = defaultResponseTimeout

func (l *leftNames) add(name string, now time.Time) {
	const few = 16
	if l.at == nil {
		l.at, l.purge = map[string]time.Time{}, few
	}
	l.at[name] = now
	if len(l.at) >= l.purge {
		maps.DeleteFunc(l.at, func(_ string, at time.Time) bool { return now.Sub(at) >= onTheWay })
		l.purge = few + 2*len(l.at)
	}
}

func (l *leftNames) has(name string, now time.Time) bool {
	at, ok := l.at[name]
	return ok && now.Sub(at) < onTheWay
}

// variants returns the resources in a response that have constraints.
func (v *verdicts) variants() map[string][]*verdict {
	come := map[string][]*verdict{}
	for i := range v.list {
		if o := &v.list[i]; o.constraints != "" && o.resource != nil {
			come[o.key] = append(come[o.key], o)
		}
	}
	return come
}

func (s *subscriptions) matches(v *verdict) bool {
	c, err := parseConstraints(v.constraints)
	return err == nil && c.match(s.params)
}

// doubt notes that a name may not exist for this set: it does not if nothing comes
// of it within the time of an answer.
func (s *subscriptions) doubt(sub *subscription, now time.Time) {
	waits := sub.doubted || !sub.answered && sub.failure == nil
	sub.doubted = true
	if waits {
		return
	}
	s.asks++
	sub.answered, sub.failure, sub.ask = false, nil, s.asks
	s.waiting = append(s.waiting, waiting{ask: s.asks, since: now, subs: []*subscription{sub}})
}

// dropDoubted takes what has been in doubt for that long for gone.
func (s *subscriptions) dropDoubted(sub *subscription, u *cache.Update) {
	delete(s.variants, sub.name)
	v := verdict{key: sub.name, gone: true}
	r := s.newLapse(u)
	in := r.sets(&v)
	c, _ := s.take(&v, in)
	u.Changes = append(u.Changes, c)
	in.lapsed(c)
	r.tell()
	u.Changes = s.takeAliases([]verdict{v}, u.Changes)
	s.expiries.End(sub.name)
}

// verdicts returns those that concern the set with that index.
func (a *aim) verdicts(i int) verdicts {
	v := *a.v
	v.list = nil
	if n := len(a.of[i]); n > 0 {
		v.list = make([]verdict, 0, n)
		for _, at := range a.of[i] {
			v.list = append(v.list, a.v.list[at])
		}
	}
	if !a.wildcard[i] {
		v.wildcard = nil
	}
	// What spares a set is no heartbeat.
	v.beats = len(a.v.list) > a.spared[i] && a.changes == a.spared[i]
	v.slow, v.shared, v.globs = a.slow[i], true, a.globs[i]
	return v
}

// differs says whether the control plane, were it told that a set has a resource,
// could take that for what another set is to have: they share the list of initial
// resource versions, in which a name is there once.
func (s *paramSets) differs(subs *subscriptions, r *cache.Resource) bool {
	if len(s.list) == 1 {
		return false
	}
	key := canonical(r.Name())
	for o := range s.among(key) {
		if o == subs {
			continue
		}
		switch held := o.holds(key); {
		case held != nil:
			if held.Version() != r.Version() || held.Constraints() != r.Constraints() {
				return true
			}
		case o.wildcard != nil || o.names[key] != nil:
			return true
		}
	}
	return false
}
