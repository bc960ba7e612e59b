package session

import (
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// sotwSession is what the sessions of names and of a wildcard have in common on a
// SotW stream.
type sotwSession struct {
	core    *core
	answers []answer
	size    int // of answers, in bytes

	nonce   string // the latest
	version string // the last accepted
	newest  string // that of the latest response, accepted or not
	before  string // the last accepted one before the latest response
	passed  passedOn
	begun   bool     // the first request was sent
	wanted  []string // in the last request: in SotW each request, ACKs too, has all names
	force   bool     // the first request must have no version, see Session.ForceAnswer
}

// request makes a request, with all names, because a later request replaces an
// earlier one. xDS: "When to send an update".
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
	s.begun = true
	return req
}

// current returns the answer for a request that only changes the subscriptions: it repeats the last
// nonce and version.
func (s *sotwSession) current() *answer { return &answer{nonce: s.nonce, version: s.version} }

// acknowledge returns the ACKs and NACKs.
func (s *sotwSession) acknowledge() (out []proto.Message) {
	for i := range s.answers {
		out = append(out, s.request(&s.answers[i], s.wanted))
	}
	s.answers, s.size = nil, 0
	return out
}

// answer queues the ACK or NACK of a response.
func (s *sotwSession) answer(r *Response, nack string) {
	s.nonce, s.newest = r.Nonce, r.Version
	if s.version != r.Version {
		s.before = s.version
	}
	if nack == "" {
		s.version = r.Version
	}
	s.queue(answer{nonce: r.Nonce, version: s.version, nack: nack})
}

// queue queues an answer.
func (s *sotwSession) queue(a answer) {
	// xDS: "When to send an update": the later request counts, so it replaces an unsent ACK. A NACK
	// is always sent.
	if n := len(s.answers); n > 0 && s.answers[n-1].nack == "" {
		s.size -= s.answers[n-1].size()
		s.answers = s.answers[:n-1]
	}
	s.answers = append(s.answers, a)
	s.size += a.size()
}

// resume returns the version for the first request of a stream. As the control plane may leave out the
// resources of that version, there is no version if any subscription has no answer.
// xDS: "ACK/NACK and resource type instance version".
func (s *sotwSession) resume(of Subscriptions) string {
	if s.force {
		return ""
	}
	for sub := range of.all() {
		if sub.wanted && !sub.answered && !sub.refused {
			return ""
		}
	}
	return s.core.shown
}

// shownBy returns the version of a response, empty if it was not accepted.
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

func (s *sotwSession) PassOn(r Rejection) {
	if s.passed.admit(s.nonce, s.newest, r) {
		s.Reject(s.before, r.Words)
	}
}

func (s *sotwSession) Begun() bool { return s.begun }

func (s *sotwSession) Pending() int { return s.size }

func (s *sotwSession) Unfit() string { return "" }

// onTheWay is how long a response for a name that was given up may be on its way.
const onTheWay = DefaultResponseTimeout

// sotwNames is the session of names. With dynamic parameters all of them are locators.
type sotwNames struct {
	sotwSession
	names  *Names
	budget budget
	// leaving are the names that were given up recently.
	leaving []leaving
	trials  trials
	// dirty: the names of the request have changed by trials. repeat: the request must be sent although they have not.
	dirty, repeat bool
	prompted      time.Time // when an answer was last asked for that says nothing new
}

// leaving is a name that was given up. If a response was on its way, the control plane ignores the
// request without the name. If the name is then wanted again, the control plane does not send its
// resource again. So the resource is kept, and kept up to date, for a while. xDS: "Resource updates".
type leaving struct {
	sub   *subscription
	since time.Time
}

func newSotWNames(n *Names) *sotwNames {
	n.opened(true)
	return &sotwNames{sotwSession: sotwSession{core: &n.core}, names: n}
}

func (s *sotwNames) Requests(now time.Time, limit int) []proto.Message {
	changed := s.change(now, limit) || s.repeat
	s.repeat = false
	answered := len(s.answers) > 0
	out := s.acknowledge()
	if rest, again := s.again(); again {
		// The control plane sends the resource of a name that is added. So the name is left out first.
		out = append(out, s.request(s.current(), rest), s.request(s.current(), s.wanted))
	} else if changed && !answered {
		out = append(out, s.request(s.current(), s.wanted))
	}
	return out
}

// change applies the changes of the subscriptions. It returns whether they need a request.
func (s *sotwNames) change(now time.Time, limit int) (changed bool) {
	n := s.names
	review := s.budget.due(now)
	if !review && len(n.changed) == 0 && !s.dirty {
		return false
	}
	s.dirty = false
	s.budget.room = sotwRoomFor(n.typeURL, limit)
	s.drop(now)
	added := s.add(now)
	if review {
		for _, sub := range s.budget.take(now, n) {
			added = s.admit(now, sub, added)
		}
	}
	n.reviewAt = s.budget.reviewAt
	if !s.begun {
		s.version = s.resume(n)
	}
	for _, sub := range added {
		sub.asked = n.responses
	}
	n.ask(added, !s.begun, now)
	s.awaitAnswer(now, added)
	wanted := s.requestOf()
	if len(wanted) == 0 && n.parked > 0 && !s.trials.series {
		s.unpark(now)
		wanted = s.requestOf()
	}
	if len(wanted) == 0 && n.parked > 0 {
		return false // a request without names would be another one
	}
	changed = !s.begun && len(added) > 0 || !slices.Equal(wanted, s.wanted)
	s.wanted = wanted
	return changed
}

// requestOf returns the names of a request.
func (s *sotwNames) requestOf() []string {
	wanted := make([]string, 0, len(s.names.subs))
	for _, name := range s.names.sorted() {
		if sub := s.names.subs[name]; sub.sent && !sub.parked {
			wanted = append(wanted, name)
		}
	}
	return wanted
}

// drop applies that names were given up.
func (s *sotwNames) drop(now time.Time) {
	for _, sub := range s.names.changed {
		if s.names.subs[sub.name] == sub && !sub.wanted && sub.sent {
			sub.sent, sub.left, sub.parked, sub.unreferred = false, true, false, false
			s.budget.release(s.names, sub)
			s.leaving = append(s.leaving, leaving{sub, now})
			s.names.forgetAt = now.Add(onTheWay)
		}
	}
}

// add applies that names are wanted, and returns those for which there is room. Names that were refused
// on an earlier stream come last.
func (s *sotwNames) add(now time.Time) (added []*subscription) {
	var before []*subscription
	for _, sub := range s.names.changed {
		switch {
		case s.names.subs[sub.name] != sub, !sub.wanted, sub.sent:
			// Given up before it was requested, or requested already.
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

// admit appends a subscription to added if there is room for it, and refuses it otherwise.
func (s *sotwNames) admit(now time.Time, sub *subscription, added []*subscription) []*subscription {
	if s.budget.admit(s.names, sub) {
		return append(added, sub)
	}
	s.budget.refuse(now, s.names, sub)
	return added
}

// again reports whether there are names to request once more, and returns the other names.
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
	s.answeredTrial(now, &v)
	s.Heard(now)
	return u, v.nack
}

// Conclude applies that the control plane has not answered names. If it answers at all, silence is the
// only sign that a resource does not exist.
// xDS: "Knowing When a Requested Resource Does Not Exist".
func (s *sotwNames) Conclude(now time.Time, timeout time.Duration, what Silence) cache.Update {
	n, u := s.names, s.names.NewUpdate()
	for len(s.leaving) > 0 && !s.leaving[0].since.Add(timeout).After(now) {
		if sub := s.leaving[0].sub; !sub.wanted && !sub.sent && n.subs[sub.name] == sub {
			n.forget(sub)
		}
		s.leaving[0] = leaving{} // otherwise the slice's memory would keep it
		s.leaving = s.leaving[1:]
	}
	s.trySilence(now)
	unheard := what == Selective && n.heard.Before(now.Add(-timeout)) && len(s.wanted) > 1
	overdue := n.overdue(now.Add(-timeout))
	if unheard && len(overdue) > 0 && !n.strict() && s.version != "" && now.Sub(s.prompted) >= timeout {
		// It has answered for other names, and may have nothing new to say. It answers a request without a version.
		s.version, s.repeat, s.prompted = "", true, now
	}
	for _, sub := range overdue {
		if what == Mute || unheard {
			if !sub.answered {
				n.fail(sub, noAnswer(timeout), &u)
			}
			if unheard {
				sub.unheard = true
				n.unheard = append(n.unheard, sub)
			}
			continue
		}
		inLast := sub.left && sub.seen == n.responses
		sub.left = false
		switch {
		case inLast:
		case sub.repeated:
			// The control plane need not send a resource again, and clients that have it keep it.
			n.fail(sub, noAnswer(timeout), &u)
			sub.repeated, sub.answered = false, true
		case n.hidden:
			n.fail(sub, errHidden(), &u)
		case n.full > sub.asked && !sub.parked && (!n.strict() || n.knew(sub, n.full)), what == Polled:
			// It is missing in a full response, or in the answer to a poll for these names.
			sub.answered, sub.answer, sub.via = true, cache.Change{Name: sub.name}, ""
			u.Changes = append(u.Changes, sub.answer)
		default:
			n.silent(sub, timeout, &u)
		}
	}
	return u
}

// errHidden is the error of a subscription to which a bad resource without a known name may belong.
func errHidden() *cache.Error {
	return &cache.Error{
		Code:    codes.InvalidArgument,
		Message: "the control plane sent a bad resource without a name, which may be this one",
		Invalid: true,
	}
}

func (s *sotwNames) ForceAnswer() bool {
	s.force = s.resume(s.names) != ""
	return s.force
}

// sotwSets is the session of a wildcard, from which globs are fed. It subscribes in
// the old form, without names, or with a locator if there are dynamic parameters. Each response is the
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
		// xDS: "How the client specifies what resources to return". A request without names
		// means the wildcard, unless an earlier one had names.
		out = append(out, s.request(s.current(), []string{cache.Wildcard}), s.request(s.current(), nil))
	case (added || dropped) && !answered:
		out = append(out, s.request(s.current(), s.wanted))
	}
	return out
}

// change applies the changes of the wildcard. It returns whether the wildcard is requested for the first
// time, or was given up.
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
		case sub.wanted && !sub.sent && s.begun:
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

func (*sotwSets) Heard(time.Time) bool { return false }

func (*sotwSets) ClustersChanged(time.Time, *Topics) bool { return false }

func (s *sotwSets) ForceAnswer() bool {
	s.force = s.resume(s.sets) != ""
	return s.force
}
