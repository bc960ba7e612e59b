package upstream

import (
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// onTheWay is for how long an answer to what was given up may be on its way.
const onTheWay = defaultResponseTimeout

// sotwSession is the client's side of one type on a SotW stream: of the wildcard,
// in the old form, whose responses are the whole state, or of names. Both at once
// are on two streams. With dynamic parameters all names, and the wildcard, are locators.
type sotwSession struct {
	subs    *subscriptions
	answers []answer
	size    int // of answers

	nonce   string   // the latest
	version string   // the last accepted
	asked   bool     // the first request was sent
	wanted  []string // in the last request
	// explicit says that a name was subscribed to on this stream. As long as none
	// was, no names mean the wildcard.
	explicit bool
	proof    bool // the version is not to be shown, see session.forceAnswer
	budget   budget
	// leaving are the names that were given up not long ago.
	leaving []leaving
	// complete says that the last response was the wildcard's whole state.
	complete bool
}

// leaving is a name that was given up. The control plane ignores the request in
// which it was missing if a response was on its way, and if the name is wanted
// again then, it will not send it again: so what is held of it is kept, and kept
// up to date, until that is over. xDS: "Resource updates".
type leaving struct {
	sub   *subscription
	since time.Time
}

func newSotWSession(subs *subscriptions) *sotwSession {
	subs.opened(true)
	return &sotwSession{subs: subs}
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
		s.wanted = []string{cache.Wildcard}
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
	if !review && len(s.subs.changed) == 0 {
		return false, false
	}
	s.budget.room = sotwRoomFor(s.subs.typeURL, limit)
	dropped = s.drop(now)
	added := s.add(now)
	if review {
		for _, sub := range s.budget.take(now, s.subs) {
			added = s.admit(now, sub, added)
		}
	}
	s.subs.reviewAt = s.budget.reviewAt
	if !s.asked {
		s.version = s.resume()
	}
	s.subs.ask(added, !s.asked, now)
	wanted := s.want()
	changed = !s.asked && len(added) > 0 || !slices.Equal(wanted, s.wanted)
	s.wanted = wanted
	return changed, dropped
}

// drop takes over what was given up, and says whether it is the wildcard.
func (s *sotwSession) drop(now time.Time) (wildcard bool) {
	for _, sub := range s.subs.changed {
		if s.subs.get(sub.name) != sub || sub.wanted || !sub.sent {
			continue
		}
		sub.sent = false
		s.budget.release(s.subs, sub)
		wildcard = wildcard || sub == s.subs.wildcard
		if w := s.subs.wildcard; s.explicit && (w == nil || s.subs.late(w)) {
			sub.left = true
			s.leaving = append(s.leaving, leaving{sub, now})
			s.subs.forgetAt = now.Add(onTheWay)
		} else {
			s.subs.forget(sub) // no name was asked for
		}
	}
	return wildcard
}

// add takes over what is wanted anew, and returns what there is room for: first for what
// was not refused on an earlier stream.
func (s *sotwSession) add(now time.Time) (added []*subscription) {
	var late, before []*subscription
	for _, sub := range s.subs.changed {
		switch {
		case s.subs.get(sub.name) != sub, !sub.wanted, sub.sent:
			// Given up before it was asked for, or known.
		case s.asked && s.subs.late(sub):
			late = append(late, sub)
		case sub.refused:
			before = append(before, sub)
		default:
			added = s.admit(now, sub, added)
		}
	}
	for _, sub := range before {
		added = s.admit(now, sub, added)
	}
	s.subs.changed = late
	return added
}

// admit adds a subscription to those that are asked for, or refuses it.
func (s *sotwSession) admit(now time.Time, sub *subscription, added []*subscription) []*subscription {
	if s.budget.admit(s.subs, sub) {
		return append(added, sub)
	}
	s.budget.refuse(now, s.subs, sub)
	return added
}

// want returns what is to be in the next request.
func (s *sotwSession) want() (wanted []string) {
	w := s.subs.wildcard
	switch {
	case w == nil || s.subs.late(w):
		for _, name := range s.subs.sorted() {
			if s.subs.names[name].sent {
				wanted = append(wanted, name)
			}
		}
	case s.subs.params != nil || s.explicit: // else it is in the old form, which has no parameters
		wanted = []string{cache.Wildcard}
	}
	return wanted
}

// again says whether there are names to be asked for once more, and returns the others.
func (s *sotwSession) again() (rest []string, again bool) {
	due := func(name string) bool {
		sub := s.subs.names[name]
		return sub != nil && sub.again
	}
	if !slices.ContainsFunc(s.wanted, due) {
		return nil, false
	}
	for _, name := range s.wanted {
		if !due(name) {
			rest = append(rest, name)
			continue
		}
		sub := s.subs.names[name]
		sub.again, sub.anew, sub.answered = false, true, false
	}
	return rest, true
}

// resume returns the version to be shown in the first request of a stream. What
// that version has, the control plane may leave out: so there is none to be shown
// if something was never had.
// xDS: "ACK/NACK and resource type instance version".
func (s *sotwSession) resume() string {
	if s.proof {
		return ""
	}
	for sub := range s.subs.all() {
		if sub.wanted && !sub.answered && !sub.refused {
			return ""
		}
	}
	return s.subs.shown
}

// request makes a request, with all names: a later one takes the place of an
// earlier. xDS: "When to send an update".
func (s *sotwSession) request(a *answer) *discoveryv3.DiscoveryRequest {
	req := &discoveryv3.DiscoveryRequest{
		TypeUrl:       s.subs.typeURL,
		VersionInfo:   a.version,
		ResponseNonce: a.nonce,
		ErrorDetail:   a.errorDetail(),
	}
	for _, name := range s.wanted {
		if l := locator(name, s.subs.params); l != nil {
			req.ResourceLocators = append(req.ResourceLocators, l)
		} else {
			req.ResourceNames = append(req.ResourceNames, name)
		}
	}
	s.asked = true
	s.explicit = s.explicit || len(s.wanted) > 0
	return req
}

func (s *sotwSession) response(now time.Time, r *response) (cache.Update, string) {
	v := accept(r, s.subs.wildcard != nil, s.subs.speaker())
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
	u := s.subs.apply(now, &v, true, r.version)
	s.subs.shown = version
	s.complete = s.subs.members() != nil && !v.hidden
	return u, v.nack
}

// conclude tells what has not been answered: there is no other sign of absence, if the
// control plane answers at all.
// xDS: "Knowing When a Requested Resource Does Not Exist".
func (s *sotwSession) conclude(now time.Time, timeout time.Duration, what silence) cache.Update {
	subs, u := s.subs, s.subs.newUpdate()
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
				subs.fail(sub, noAnswer(timeout), &u)
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
			subs.fail(sub, noAnswer(timeout), &u)
			sub.anew, sub.answered = false, true
		case subs.hidden:
			subs.fail(sub, &cache.Error{
				Code:    codes.InvalidArgument,
				Message: "the control plane sent something bad without a name, which may be this",
				Invalid: true,
			}, &u)
		case subs.wildcard != nil && subs.members() == nil:
			subs.fail(sub, noAnswer(timeout), &u)
		case subs.fulls > sub.fulls, what == polledSince:
			absent(sub) // from the whole state, or from the answer to just this
		default:
			subs.silent(sub, timeout, &u)
		}
	}
	return u
}

func (s *sotwSession) forceAnswer() bool {
	s.proof = s.resume() != ""
	return s.proof
}

func (s *sotwSession) begun() bool { return s.asked }

func (s *sotwSession) pending() int { return s.size }

func (s *sotwSession) unfit() string { return "" }
