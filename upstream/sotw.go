package upstream

import (
	"fmt"
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// sotwSession is the client's side of one type on a SotW stream.
//
// As long as the wildcard is wanted it is asked for alone, in the old form, and
// names are answered from its set: a response to it is the whole state. By the
// document `*` could be asked for together with names, but control planes that
// take it for a name among others (go-control-plane's snapshots) would answer
// with the names alone, and that would be taken for the whole state.
type sotwSession struct {
	subs    *subscriptions
	answers []answer
	size    int // of answers

	nonce   string   // the latest
	version string   // the last accepted
	asked   bool     // the first request was sent
	names   []string // of the last request
	// explicit says that a name was subscribed to on this stream. As long as none
	// was, no names mean the wildcard.
	explicit bool
	// leaving are the names that were given up not long ago.
	leaving []leaving
	// complete says that the last response was the wildcard's whole state.
	complete bool
	tooLong  int // bytes of a request that is longer than the limit
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
	changed, dropped := s.change(now)
	var out []proto.Message
	for i := range s.answers {
		out = append(out, s.request(&s.answers[i], limit))
	}
	current := answer{nonce: s.nonce, version: s.version}
	if again := s.again(); len(again) > 0 {
		// A name that is newly added is sent again: so it is left out first.
		names := s.names
		s.names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(again, name) })
		out = append(out, s.request(&current, limit))
		s.names = names
		out = append(out, s.request(&current, limit))
	} else if changed && len(s.answers) == 0 {
		out = append(out, s.request(&current, limit))
	}
	s.answers, s.size = nil, 0

	if dropped && !s.explicit {
		// xDS: "How the client specifies what resources to return". No names still
		// mean the wildcard, until there have been some.
		s.names = []string{cache.Wildcard}
		out = append(out, s.request(&current, limit))
		s.names = nil
		out = append(out, s.request(&current, limit))
	}
	return out
}

// change takes over what has changed about the subscriptions. It says whether a
// request is due because of it, and whether the wildcard was given up.
func (s *sotwSession) change(now time.Time) (changed, dropped bool) {
	if len(s.subs.changed) == 0 {
		return false, false
	}
	var add []*subscription
	for _, sub := range s.subs.changed {
		switch {
		case s.subs.get(sub.name) != sub:
			// Given up before it was asked for.
		case sub.wanted && !sub.sent:
			sub.sent = true
			add = append(add, sub)
		case !sub.wanted && sub.sent:
			sub.sent = false
			dropped = dropped || sub == s.subs.wildcard
			if s.explicit && sub != s.subs.wildcard {
				sub.left = true
				s.leaving = append(s.leaving, leaving{sub, now})
			} else {
				s.subs.forget(sub) // no name was asked for
			}
		}
	}
	s.subs.changed = nil
	if !s.asked {
		s.version = s.resume()
	}
	s.subs.ask(add, !s.asked, now)

	var names []string
	switch {
	case s.subs.wildcard == nil:
		names = s.subs.sorted()
	case s.subs.params != nil:
		names = []string{cache.Wildcard} // which the old form has no parameters for
	}
	changed = !s.asked && len(add) > 0 || !slices.Equal(names, s.names)
	s.names = names
	return changed, dropped
}

// again returns the names that are to be asked for once more.
func (s *sotwSession) again() (names []string) {
	for _, name := range s.names {
		if sub := s.subs.names[name]; sub != nil && sub.again {
			sub.again, sub.anew, sub.answered = false, true, false
			names = append(names, name)
		}
	}
	return names
}

// resume returns the version to be shown in the first request of a stream. What
// that version has, the control plane may leave out: so there is none to be shown
// if something was never had.
// xDS: "ACK/NACK and resource type instance version".
func (s *sotwSession) resume() string {
	for sub := range s.subs.all() {
		if sub.wanted && !sub.answered {
			return ""
		}
	}
	return s.subs.version
}

// request makes a request, with all names: a later one takes the place of an
// earlier. xDS: "When to send an update".
func (s *sotwSession) request(a *answer, limit int) *discoveryv3.DiscoveryRequest {
	req := &discoveryv3.DiscoveryRequest{
		TypeUrl:       s.subs.typeURL,
		VersionInfo:   a.version,
		ResponseNonce: a.nonce,
		ErrorDetail:   a.errorDetail(),
	}
	if s.subs.params == nil {
		req.ResourceNames = s.names
	}
	for _, name := range s.names {
		if l := locator(name, s.subs.params); l != nil {
			req.ResourceLocators = append(req.ResourceLocators, l)
		}
	}
	s.asked = true
	s.explicit = s.explicit || len(s.names) > 0
	if n := proto.Size(req); n > limit {
		s.tooLong = n
	}
	return req
}

func (s *sotwSession) response(now time.Time, r *response) (cache.Update, string) {
	v := accept(r)
	s.nonce = r.nonce
	s.subs.version = ""
	if v.nack == "" {
		s.version, s.subs.version = r.version, r.version
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
	s.complete = s.subs.members() != nil && !v.hidden
	return u, v.nack
}

// conclude tells absent what has not been answered: there is no other sign.
// xDS: "Knowing When a Requested Resource Does Not Exist".
func (s *sotwSession) conclude(now time.Time, timeout time.Duration) cache.Update {
	for len(s.leaving) > 0 && !s.leaving[0].since.Add(timeout).After(now) {
		if sub := s.leaving[0].sub; !sub.wanted && !sub.sent && s.subs.get(sub.name) == sub {
			s.subs.forget(sub)
		}
		s.leaving = s.leaving[1:]
	}
	u := s.subs.newUpdate()
	absent := func(sub *subscription) {
		sub.answered, sub.answer, sub.via = true, cache.Change{Name: sub.name}, ""
		u.Changes = append(u.Changes, sub.answer)
	}
	if w := s.subs.wildcard; w != nil && w.wanted && s.complete {
		for _, sub := range s.subs.changed {
			if sub.wanted && !sub.answered && sub != s.subs.wildcard {
				absent(sub) // from the whole state, which is known
			}
		}
	}
	for _, sub := range s.subs.overdue(now.Add(-timeout)) {
		inLast := sub.left && sub.seen == s.subs.responses
		sub.left = false
		switch {
		case inLast:
		case sub.anew:
			// What the control plane has sent already it need not send again, and those
			// who have it keep it.
			s.subs.fail(sub, noAnswer(timeout), &u)
			sub.anew, sub.answered = false, true
		case s.subs.hidden:
			s.subs.fail(sub, &cache.Error{
				Code:    codes.InvalidArgument,
				Message: "the control plane sent something bad without a name, which may be this",
			}, &u)
		case s.subs.wildcard != nil && s.subs.members() == nil:
			s.subs.fail(sub, noAnswer(timeout), &u)
		default:
			absent(sub)
		}
	}
	return u
}

func (s *sotwSession) begun() bool { return s.asked }

func (s *sotwSession) pending() int { return s.size }

func (s *sotwSession) unfit() string {
	if s.tooLong == 0 {
		return ""
	}
	n := s.tooLong
	s.tooLong = 0
	return fmt.Sprintf("a request of %d bytes: SotW names cannot be split", n)
}
