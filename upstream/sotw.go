package upstream

import (
	"maps"
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// sotwSession is the client's side of one type on a SotW stream: of the wildcard,
// in the old form, whose responses are the whole state, or of names. Both at once
// are on two streams.
//
// Each set of dynamic parameters has that for itself: a request has the names of
// who has none, and locators of all others. Where there are locators, a wildcard
// without parameters is a locator too. So it is for who knows locators, and to who
// does not the request looks as if that were all.
type sotwSession struct {
	sets    *paramSets
	of      map[*subscriptions]*sotwSet
	answers []answer
	size    int // of answers

	nonce   string    // the latest
	version string    // the last accepted
	asked   bool      // the first request was sent
	wanted  []sotwAsk // in the last request
	// explicit says that a name was subscribed to on this stream. As long as none
	// was, no names mean the wildcard. located says that one was by a locator.
	explicit, located bool
	proof             bool // the version is not to be shown, see session.forceAnswer
	budget            budget
}

// sotwSet is what a session knows of one set.
type sotwSet struct {
	// leaving are the names that were given up not long ago.
	leaving []leaving
	// complete says that the last response was the wildcard's whole state.
	complete bool
}

// sotwAsk is a name in a request.
type sotwAsk struct {
	subs *subscriptions
	name string
}

// leaving is a name that was given up. The control plane ignores the request in
// which it was missing if a response was on its way, and if the name is wanted
// again then, it will not send it again: so what is held of it is kept, and kept
// up to date, until that is over. xDS: "Resource updates".
type leaving struct {
	sub   *subscription
	since time.Time
}

func newSotWSession(sets *paramSets) *sotwSession {
	sets.opened(true)
	return &sotwSession{sets: sets, of: map[*subscriptions]*sotwSet{}}
}

// set returns what is known of a set.
func (s *sotwSession) set(subs *subscriptions) *sotwSet {
	set := s.of[subs]
	if set == nil {
		set = &sotwSet{}
		s.of[subs] = set
	}
	return set
}

func (s *sotwSession) requests(now time.Time, limit int) []proto.Message {
	changed, dropped := s.change(now, limit)
	var out []proto.Message
	for i := range s.answers {
		out = append(out, s.request(&s.answers[i]))
	}
	current := answer{nonce: s.nonce, version: s.version}
	if rest, again := s.again(); again {
		// A name that is newly added is sent again: so it is left out first.
		wanted := s.wanted
		s.wanted = rest
		out = append(out, s.request(&current))
		s.wanted = wanted
		out = append(out, s.request(&current))
	} else if changed && len(s.answers) == 0 {
		out = append(out, s.request(&current))
	}
	s.answers, s.size = nil, 0

	if dropped && !s.explicit {
		// xDS: "How the client specifies what resources to return". No names still
		// mean the wildcard, until there have been some.
		s.wanted = []sotwAsk{{s.sets.of(""), cache.Wildcard}}
		out = append(out, s.request(&current))
		s.wanted = nil
		out = append(out, s.request(&current))
	}
	return out
}

// change takes over what has changed about the subscriptions. It says whether a
// request is due because of it, and whether the wildcard was given up.
func (s *sotwSession) change(now time.Time, limit int) (changed, dropped bool) {
	review := s.budget.due(now)
	if !review && !slices.ContainsFunc(s.sets.list, func(subs *subscriptions) bool { return len(subs.changed) > 0 }) {
		return false, false
	}
	s.budget.room = sotwRoomFor(s.sets.typeURL, limit)
	adds := map[*subscriptions][]*subscription{}
	for _, subs := range s.sets.list {
		dropped = s.dropOf(subs, now) || dropped
	}
	for _, subs := range s.sets.list {
		adds[subs] = s.addOf(subs, now)
	}
	if review {
		for _, r := range s.budget.take(now) {
			if s.budget.admit(r.subs, r.sub, s.sets.modest) {
				adds[r.subs] = append(adds[r.subs], r.sub)
			} else {
				s.budget.refuse(now, r.subs, r.sub)
			}
		}
	}
	s.sets.reviewAt = s.budget.reviewAt
	added := false
	for _, subs := range s.sets.list {
		added = added || len(adds[subs]) > 0
	}
	if !s.asked {
		s.version = s.resume()
	}
	for _, subs := range s.sets.list {
		subs.ask(adds[subs], !s.asked, now)
	}
	wanted := s.want()
	changed = !s.asked && added || !slices.Equal(wanted, s.wanted)
	s.wanted = wanted
	return changed, dropped
}

// dropOf takes over what was given up of one set, and says whether it is the wildcard.
func (s *sotwSession) dropOf(subs *subscriptions, now time.Time) (wildcard bool) {
	for _, sub := range subs.changed {
		if subs.get(sub.name) != sub || sub.wanted || !sub.sent {
			continue
		}
		sub.sent = false
		s.budget.release(subs, sub)
		wildcard = wildcard || sub == subs.wildcard
		if w := subs.wildcard; s.explicit && (w == nil || subs.late(w)) {
			sub.left = true
			set := s.set(subs)
			set.leaving = append(set.leaving, leaving{sub, now})
			s.sets.gaveUp(now)
		} else {
			subs.forget(sub) // no name was asked for
		}
	}
	return wildcard
}

// addOf takes over what is wanted anew of one set, and returns what there is room for:
// first for what was not refused on an earlier stream.
func (s *sotwSession) addOf(subs *subscriptions, now time.Time) (add []*subscription) {
	var late, before []*subscription
	admit := func(sub *subscription) {
		if s.budget.admit(subs, sub, s.sets.modest) {
			add = append(add, sub)
		} else {
			s.budget.refuse(now, subs, sub)
		}
	}
	for _, sub := range subs.changed {
		switch {
		case subs.get(sub.name) != sub, !sub.wanted, sub.sent:
			// Given up before it was asked for, or known.
		case s.asked && subs.late(sub):
			late = append(late, sub)
		case sub.refused:
			before = append(before, sub)
		default:
			admit(sub)
		}
	}
	for _, sub := range before {
		admit(sub)
	}
	subs.changed = late
	return add
}

// want returns what is to be in the next request.
func (s *sotwSession) want() (wanted []sotwAsk) {
	for _, subs := range s.sets.list {
		if w := subs.wildcard; w != nil && !subs.late(w) {
			wanted = append(wanted, sotwAsk{subs, cache.Wildcard})
			continue
		}
		for _, name := range subs.sorted() {
			if subs.names[name].sent {
				wanted = append(wanted, sotwAsk{subs, name})
			}
		}
	}
	if len(wanted) == 1 && wanted[0].name == cache.Wildcard && wanted[0].subs.params == nil && !s.explicit {
		return nil // the old form, which has no parameters
	}
	return wanted
}

// again says whether there are names to be asked for once more, and returns the others.
func (s *sotwSession) again() (rest []sotwAsk, again bool) {
	due := func(a sotwAsk) bool {
		sub := a.subs.names[a.name]
		return sub != nil && sub.again
	}
	if !slices.ContainsFunc(s.wanted, due) {
		return nil, false
	}
	for _, a := range s.wanted {
		if !due(a) {
			rest = append(rest, a)
			continue
		}
		sub := a.subs.names[a.name]
		sub.again, sub.anew, sub.answered = false, true, false
	}
	return rest, true
}

// resume returns the version to be shown in the first request of a stream. What
// that version has, the control plane may leave out: so there is none to be shown
// if something was never had, or may have come for others.
// xDS: "ACK/NACK and resource type instance version".
func (s *sotwSession) resume() string {
	if len(s.sets.list) != 1 || s.proof {
		return ""
	}
	subs := s.sets.list[0]
	for sub := range subs.all() {
		if sub.wanted && !sub.answered && !sub.refused {
			return ""
		}
	}
	return subs.shown
}

// request makes a request, with all names: a later one takes the place of an
// earlier. xDS: "When to send an update".
func (s *sotwSession) request(a *answer) *discoveryv3.DiscoveryRequest {
	req := &discoveryv3.DiscoveryRequest{
		TypeUrl:       s.sets.typeURL,
		VersionInfo:   a.version,
		ResponseNonce: a.nonce,
		ErrorDetail:   a.errorDetail(),
	}
	for _, a := range s.wanted {
		switch l := locator(a.name, a.subs.params); {
		case l != nil:
			req.ResourceLocators = append(req.ResourceLocators, l)
		case a.name == cache.Wildcard && (s.located || s.wanted[len(s.wanted)-1].subs.params != nil):
			req.ResourceLocators = append(req.ResourceLocators, &discoveryv3.ResourceLocator{Name: a.name})
		default:
			req.ResourceNames = append(req.ResourceNames, a.name)
		}
	}
	s.asked = true
	s.explicit = s.explicit || len(s.wanted) > 0
	s.located = s.located || len(req.GetResourceLocators()) > 0
	return req
}

func (s *sotwSession) response(now time.Time, r *response) ([]cache.Update, string) {
	v := accept(r, s.sets.hasWildcard(), s.sets.speaker())
	s.nonce = r.nonce
	version := ""
	if v.nack == "" {
		s.version, version = r.version, r.version
	}
	a := answer{nonce: r.nonce, version: s.version, nack: v.nack}
	// xDS: "When to send an update": the later request counts. But what was wrong
	// with a response is said.
	if n := len(s.answers); n > 0 && s.answers[n-1].nack == "" {
		s.size -= s.answers[n-1].size()
		s.answers = s.answers[:n-1]
	}
	s.answers = append(s.answers, a)
	s.size += a.size()
	updates := s.sets.apply(now, &v, true, r.version)
	for _, subs := range s.sets.list {
		subs.shown = version
		s.set(subs).complete = subs.members() != nil && !v.hidden
	}
	return updates, v.nack
}

// conclude tells what has not been answered: there is no other sign of absence, if the
// control plane answers at all.
// xDS: "Knowing When a Requested Resource Does Not Exist".
func (s *sotwSession) conclude(now time.Time, timeout time.Duration, what silence) []cache.Update {
	if len(s.of) > len(s.sets.list) {
		maps.DeleteFunc(s.of, func(subs *subscriptions, _ *sotwSet) bool { return s.sets.find(subs.scope.Params) != subs })
	}
	return s.sets.newUpdates(func(subs *subscriptions, u *cache.Update) {
		s.set(subs).conclude(subs, now, timeout, what, u)
	})
}

func (s *sotwSet) conclude(subs *subscriptions, now time.Time, timeout time.Duration, what silence, u *cache.Update) {
	for len(s.leaving) > 0 && !s.leaving[0].since.Add(timeout).After(now) {
		if sub := s.leaving[0].sub; !sub.wanted && !sub.sent && subs.get(sub.name) == sub {
			subs.forget(sub)
		}
		s.leaving[0] = leaving{} // else it lasts as long as the slice's memory
		s.leaving = s.leaving[1:]
	}
	absent := func(sub *subscription) {
		sub.answered, sub.answer, sub.via = true, cache.Change{Name: sub.name}, ""
		u.Changes = append(u.Changes, sub.answer)
	}
	if w := subs.wildcard; w != nil && w.wanted && s.complete {
		for _, sub := range subs.changed {
			if sub.wanted && !sub.answered && sub != w {
				absent(sub) // from the whole state, which is known
			}
		}
	}
	for _, sub := range subs.overdue(now.Add(-timeout)) {
		if what == mute {
			if !sub.answered {
				subs.fail(sub, noAnswer(timeout), u)
			}
			continue
		}
		inLast := sub.left && sub.seen == subs.responses
		sub.left = false
		switch {
		case inLast:
		case sub.anew:
			// What the control plane has sent already it need not send again, and those
			// who have it keep it.
			subs.fail(sub, noAnswer(timeout), u)
			sub.anew, sub.answered = false, true
		case subs.hidden:
			subs.fail(sub, &cache.Error{
				Code:    codes.InvalidArgument,
				Message: "the control plane sent something bad without a name, which may be this",
				Bad:     true,
			}, u)
		case subs.wildcard != nil && subs.members() == nil:
			subs.fail(sub, noAnswer(timeout), u)
		case subs.fulls > sub.fulls, what == polledSince:
			absent(sub) // from the whole state, or from the answer to just this
		default:
			subs.silent(sub, timeout, u)
		}
	}
}

func (s *sotwSession) forceAnswer() bool {
	s.proof = s.resume() != ""
	return s.proof
}

func (s *sotwSession) begun() bool { return s.asked }

func (s *sotwSession) pending() int { return s.size }

func (s *sotwSession) unfit() string { return "" }
