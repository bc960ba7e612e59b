package session

import (
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// sotwSession is what the client's sides of names and of a wildcard have in common on a
// SotW stream.
type sotwSession struct {
	core    *core
	answers []answer
	size    int // of answers

	nonce   string   // the latest
	version string   // the last accepted
	before  string   // the one before that
	passed  string   // the nonce of the last response that passOn has rejected
	asked   bool     // the first request was sent
	wanted  []string // in the last request: in SotW each request, ACKs too, has all names
	proof   bool     // the version is not to be shown, see Session.ForceAnswer
}

// request makes a request, with all names: a later one takes the place of an
// earlier. xDS: "When to send an update".
func (s *sotwSession) request(a *answer, names []string) *discoveryv3.DiscoveryRequest {
	req := &discoveryv3.DiscoveryRequest{
		TypeUrl:       s.core.typeURL,
		VersionInfo:   a.version,
		ResponseNonce: a.nonce,
		ErrorDetail:   a.errorDetail(),
	}
	for _, name := range names {
		if l := locator(name, s.core.params); l != nil {
			req.ResourceLocators = append(req.ResourceLocators, l)
		} else {
			req.ResourceNames = append(req.ResourceNames, name)
		}
	}
	s.asked = true
	return req
}

// current is the answer of a request that only changes what is subscribed to.
func (s *sotwSession) current() *answer { return &answer{nonce: s.nonce, version: s.version} }

// acknowledge returns the requests that answer responses.
func (s *sotwSession) acknowledge() (out []proto.Message) {
	for i := range s.answers {
		out = append(out, s.request(&s.answers[i], s.wanted))
	}
	s.answers, s.size = nil, 0
	return out
}

// answer queues the answer to a response.
func (s *sotwSession) answer(r *Response, nack string) {
	s.nonce = r.Nonce
	if nack == "" && s.version != r.Version {
		s.before, s.version = s.version, r.Version
	}
	s.queue(answer{nonce: r.Nonce, version: s.version, nack: nack})
}

// queue adds an answer to those that are to be sent.
func (s *sotwSession) queue(a answer) {
	// xDS: "When to send an update": the later request counts. But what was wrong
	// with a response is said.
	if n := len(s.answers); n > 0 && s.answers[n-1].nack == "" {
		s.size -= s.answers[n-1].size()
		s.answers = s.answers[:n-1]
	}
	s.answers = append(s.answers, a)
	s.size += a.size()
}

// resume returns the version to be shown in the first request of a stream. What
// that version has, the control plane may leave out: so there is none to be shown
// if something was never had.
// xDS: "ACK/NACK and resource type instance version".
func (s *sotwSession) resume(of Subscriptions) string {
	if s.proof {
		return ""
	}
	for sub := range of.all() {
		if sub.wanted && !sub.answered && !sub.refused {
			return ""
		}
	}
	return s.core.shown
}

// shownBy returns the version that a response has, if it was accepted.
func shownBy(r *Response, nack string) string {
	if nack == "" {
		return r.Version
	}
	return ""
}

func (s *sotwSession) Reject(version, words string) {
	if s.nonce == "" {
		return // there was no response
	}
	s.version = version
	s.queue(answer{nonce: s.nonce, version: version, nack: words})
}

func (s *sotwSession) PassOn(words string) {
	if s.nonce != s.passed {
		s.passed = s.nonce
		s.Reject(s.before, words)
	}
}

func (s *sotwSession) Begun() bool { return s.asked }

func (s *sotwSession) Pending() int { return s.size }

func (s *sotwSession) Unfit() string { return "" }

// onTheWay is for how long an answer to what was given up may be on its way.
const onTheWay = DefaultResponseTimeout

// sotwNames is the session of names. With dynamic parameters all of them are locators.
type sotwNames struct {
	sotwSession
	names  *Names
	budget budget
	// leaving are the names that were given up not long ago.
	leaving []leaving
}

// leaving is a name that was given up. The control plane ignores the request in
// which it was missing if a response was on its way, and if the name is wanted
// again then, it will not send it again: so what is held of it is kept, and kept
// up to date, until that is over. xDS: "Resource updates".
type leaving struct {
	sub   *subscription
	since time.Time
}

func newSotWNames(n *Names) *sotwNames {
	n.opened(true)
	return &sotwNames{sotwSession: sotwSession{core: &n.core}, names: n}
}

func (s *sotwNames) Requests(now time.Time, limit int) []proto.Message {
	changed := s.change(now, limit)
	answered := len(s.answers) > 0
	out := s.acknowledge()
	if rest, again := s.again(); again {
		// A name that is newly added is sent again: so it is left out first.
		out = append(out, s.request(s.current(), rest), s.request(s.current(), s.wanted))
	} else if changed && !answered {
		out = append(out, s.request(s.current(), s.wanted))
	}
	return out
}

// change takes over what has changed about the subscriptions. It says whether a
// request is due because of it.
func (s *sotwNames) change(now time.Time, limit int) (changed bool) {
	n := s.names
	review := s.budget.due(now)
	if !review && len(n.changed) == 0 {
		return false
	}
	s.budget.room = sotwRoomFor(n.typeURL, limit)
	s.drop(now)
	added := s.add(now)
	if review {
		for _, sub := range s.budget.take(now, n) {
			added = s.admit(now, sub, added)
		}
	}
	n.reviewAt = s.budget.reviewAt
	if !s.asked {
		s.version = s.resume(n)
	}
	for _, sub := range added {
		sub.fulls = n.fulls
	}
	n.ask(added, !s.asked, now)
	wanted := make([]string, 0, len(n.subs))
	for _, name := range n.sorted() {
		if n.subs[name].sent {
			wanted = append(wanted, name)
		}
	}
	changed = !s.asked && len(added) > 0 || !slices.Equal(wanted, s.wanted)
	s.wanted = wanted
	return changed
}

// drop takes over what was given up.
func (s *sotwNames) drop(now time.Time) {
	for _, sub := range s.names.changed {
		if s.names.subs[sub.name] == sub && !sub.wanted && sub.sent {
			sub.sent, sub.left = false, true
			s.budget.release(s.names, sub)
			s.leaving = append(s.leaving, leaving{sub, now})
			s.names.forgetAt = now.Add(onTheWay)
		}
	}
}

// add takes over what is wanted anew, and returns what there is room for: first for what
// was not refused on an earlier stream.
func (s *sotwNames) add(now time.Time) (added []*subscription) {
	var before []*subscription
	for _, sub := range s.names.changed {
		switch {
		case s.names.subs[sub.name] != sub, !sub.wanted, sub.sent:
			// Given up before it was requested, or known.
		case sub.refused:
			before = append(before, sub)
		default:
			added = s.admit(now, sub, added)
		}
	}
	for _, sub := range before {
		added = s.admit(now, sub, added)
	}
	s.names.changed = nil
	return added
}

// admit adds a subscription to those that are requested, or refuses it.
func (s *sotwNames) admit(now time.Time, sub *subscription, added []*subscription) []*subscription {
	if s.budget.admit(s.names, sub) {
		return append(added, sub)
	}
	s.budget.refuse(now, s.names, sub)
	return added
}

// again says whether there are names to be requested once more, and returns the others.
func (s *sotwNames) again() (rest []string, again bool) {
	due := func(name string) bool {
		sub := s.names.subs[name]
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
		sub := s.names.subs[name]
		sub.again, sub.repeated, sub.answered = false, true, false
	}
	return rest, true
}

func (s *sotwNames) Response(now time.Time, r *Response) (cache.Update, string) {
	v := accept(r, false, s.core.speaker(), s.core.check)
	s.answer(r, v.nack)
	u := s.names.apply(now, &v, true, r.Version)
	s.core.shown = shownBy(r, v.nack)
	return u, v.nack
}

// Conclude applies what has not been answered: there is no other sign of absence, if the
// control plane answers at all.
// xDS: "Knowing When a Requested Resource Does Not Exist".
func (s *sotwNames) Conclude(now time.Time, timeout time.Duration, what Silence) cache.Update {
	n, u := s.names, s.names.NewUpdate()
	for len(s.leaving) > 0 && !s.leaving[0].since.Add(timeout).After(now) {
		if sub := s.leaving[0].sub; !sub.wanted && !sub.sent && n.subs[sub.name] == sub {
			n.forget(sub)
		}
		s.leaving[0] = leaving{} // else it lasts as long as the slice's memory
		s.leaving = s.leaving[1:]
	}
	for _, sub := range n.overdue(now.Add(-timeout)) {
		if what == Mute {
			if !sub.answered {
				n.fail(sub, noAnswer(timeout), &u)
			}
			continue
		}
		inLast := sub.left && sub.seen == n.responses
		sub.left = false
		switch {
		case inLast:
		case sub.repeated:
			// What the control plane has sent already it need not send again, and those
			// who have it keep it.
			n.fail(sub, noAnswer(timeout), &u)
			sub.repeated, sub.answered = false, true
		case n.hidden:
			n.fail(sub, errHidden(), &u)
		case n.fulls > sub.fulls, what == Polled:
			// It is not in the whole state, or in the answer to just this.
			sub.answered, sub.answer, sub.via = true, cache.Change{Name: sub.name}, ""
			u.Changes = append(u.Changes, sub.answer)
		default:
			n.silent(sub, timeout, &u)
		}
	}
	return u
}

// errHidden is the error of what may be something bad whose name is not known.
func errHidden() *cache.Error {
	return &cache.Error{
		Code:    codes.InvalidArgument,
		Message: "the control plane sent a bad resource without a name, which may be this one",
		Invalid: true,
	}
}

func (s *sotwNames) ForceAnswer() bool {
	s.proof = s.resume(s.names) != ""
	return s.proof
}

// sotwSets is the session of a wildcard, from which globs are fed. It is subscribed to in
// the old form, without names, or with dynamic parameters by a locator. Responses are the
// whole state.
type sotwSets struct {
	sotwSession
	sets *Sets
}

func newSotWSets(s *Sets) *sotwSets {
	s.opened(true)
	return &sotwSets{sotwSession{core: &s.core}, s}
}

func (s *sotwSets) Requests(now time.Time, limit int) []proto.Message {
	explicit := len(s.wanted) > 0
	added, dropped := s.change(now, limit)
	answered := len(s.answers) > 0
	out := s.acknowledge()
	switch {
	case dropped && !explicit:
		// xDS: "How the client specifies what resources to return". No names still
		// mean the wildcard, until there have been some.
		out = append(out, s.request(s.current(), []string{cache.Wildcard}), s.request(s.current(), nil))
	case (added || dropped) && !answered:
		out = append(out, s.request(s.current(), s.wanted))
	}
	return out
}

// change takes over what has changed about the wildcard: whether it is requested first now,
// or was given up.
func (s *sotwSets) change(now time.Time, limit int) (added, dropped bool) {
	var late []*subscription
	for _, sub := range s.sets.changed {
		switch {
		case s.sets.get(sub.name) != sub || sub.name != cache.Wildcard:
			// Given up before it was requested, or fed from the wildcard.
		case !sub.wanted && sub.sent:
			sub.sent = false
			s.wanted = nil
			s.sets.forget(sub)
			dropped = true
		case sub.wanted && !sub.sent && s.asked:
			late = append(late, sub)
		case sub.wanted && !sub.sent && s.core.sizeOf(sub) > sotwRoomFor(s.core.typeURL, limit):
			refuse(s.sets, sub, tooLong(s.core.sizeOf(sub)))
		case sub.wanted && !sub.sent:
			s.version = s.resume(s.sets)
			s.sets.ask([]*subscription{sub}, true, now)
			if s.core.params != nil {
				s.wanted = []string{cache.Wildcard}
			}
			added = true
		}
	}
	s.sets.changed = late
	return added, dropped
}

func (s *sotwSets) Response(now time.Time, r *Response) (cache.Update, string) {
	v := accept(r, s.sets.wildcard != nil, s.core.speaker(), s.core.check)
	s.answer(r, v.nack)
	u := s.sets.apply(now, &v, true, r.Version)
	s.core.shown = shownBy(r, v.nack)
	return u, v.nack
}

// Conclude applies that the control plane has not answered.
func (s *sotwSets) Conclude(now time.Time, timeout time.Duration, what Silence) cache.Update {
	u := s.sets.NewUpdate()
	for _, sub := range s.sets.overdue(now.Add(-timeout)) {
		err := noAnswer(timeout)
		if what != Mute && s.sets.hidden {
			err = errHidden()
		}
		s.sets.fail(sub, err, &u)
	}
	return u
}

func (s *sotwSets) ForceAnswer() bool {
	s.proof = s.resume(s.sets) != ""
	return s.proof
}
