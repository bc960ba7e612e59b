package upstream

import (
	"fmt"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// sotwSession is the client's side of one type on a SotW stream.
type sotwSession struct {
	subs    *subscriptions
	answers []answer
	size    int // of answers

	nonce   string // the latest
	version string // the last accepted
	asked   bool   // the first request was sent
	// explicit says that a name was subscribed to on this stream. As long as none
	// was, no names mean the wildcard.
	explicit bool
	names    []string // of the last request
	tooLong  int      // bytes of a request that is longer than the limit
}

func newSotWSession(subs *subscriptions) *sotwSession {
	subs.opened()
	s := &sotwSession{subs: subs, version: subs.version}
	for sub := range subs.all() {
		if !sub.answered {
			// xDS: "ACK/NACK and resource type instance version". What is shown here
			// the control plane may leave out, but this was never had.
			s.version = ""
		}
	}
	return s
}

func (s *sotwSession) requests(now time.Time, limit int) []proto.Message {
	changed := s.change(now)
	var out []proto.Message
	for i := range s.answers {
		out = append(out, s.request(&s.answers[i], limit))
	}
	if changed && len(s.answers) == 0 {
		out = append(out, s.request(&answer{nonce: s.nonce, version: s.version}, limit))
	}
	s.answers, s.size = nil, 0

	if w := s.subs.wildcard; w != nil && !w.wanted {
		s.subs.forget(w)
		if !s.explicit && s.asked {
			// xDS: "How the client specifies what resources to return". No names
			// still mean the wildcard, until there have been some.
			s.names = []string{cache.Wildcard}
			out = append(out, s.request(&answer{nonce: s.nonce, version: s.version}, limit))
			s.names = nil
			out = append(out, s.request(&answer{nonce: s.nonce, version: s.version}, limit))
		}
	}
	return out
}

// change takes over what has changed about the subscriptions, and says whether
// a request is due because of it.
func (s *sotwSession) change(now time.Time) bool {
	if len(s.subs.changed) == 0 {
		return false
	}
	var add []*subscription
	dropped := false
	for _, sub := range s.subs.changed {
		switch {
		case s.subs.get(sub.name) != sub:
			// Given up before it was asked for.
		case sub.wanted && !sub.sent:
			sub.sent = true
			add = append(add, sub)
		case !sub.wanted && sub.sent:
			sub.sent = false
			dropped = true
			if sub != s.subs.wildcard {
				s.subs.forget(sub)
			}
		}
	}
	s.subs.changed = nil
	if len(add) == 0 && !dropped {
		return false
	}
	s.subs.ask(add, !s.asked, now)

	s.names = s.subs.sorted()
	w := s.subs.wildcard
	if w != nil && w.wanted && (len(s.names) > 0 || s.explicit) {
		s.names = append([]string{cache.Wildcard}, s.names...)
	}
	// Having had nothing but the wildcard in the old form, giving that up takes
	// more than a request without names.
	return len(s.names) > 0 || s.explicit || len(add) > 0
}

// request makes a request, with all names: a later one takes the place of an
// earlier. xDS: "When to send an update".
func (s *sotwSession) request(a *answer, limit int) *discoveryv3.DiscoveryRequest {
	req := &discoveryv3.DiscoveryRequest{
		TypeUrl:       s.subs.typeURL,
		ResourceNames: s.names,
		VersionInfo:   a.version,
		ResponseNonce: a.nonce,
		ErrorDetail:   a.errorDetail(),
	}
	s.asked = true
	s.explicit = s.explicit || len(s.names) > 0
	if n := proto.Size(req); n > limit {
		s.tooLong = n
	}
	return req
}

func (s *sotwSession) response(r *response) (cache.Update, string) {
	v := accept(r)
	s.nonce = r.nonce
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
	return s.subs.apply(&v, true, r.version), v.nack
}

// overdue tells absent what has not been answered: there is no other sign.
// xDS: "Knowing When a Requested Resource Does Not Exist".
func (s *sotwSession) overdue(now time.Time, timeout time.Duration) cache.Update {
	u := s.subs.newUpdate()
	for _, sub := range s.subs.overdue(now.Add(-timeout)) {
		switch {
		case sub.heard:
			s.subs.settle(&u)
		case sub == s.subs.wildcard:
			s.subs.fail(sub, noAnswer(timeout), &u)
		case s.subs.hidden:
			s.subs.fail(sub, &cache.Error{
				Code:    codes.InvalidArgument,
				Message: "the control plane sent something bad without a name, which may be this",
			}, &u)
		default:
			sub.answered, sub.answer = true, cache.Change{Name: sub.name}
			u.Changes = append(u.Changes, sub.answer)
		}
	}
	return u
}

func (s *sotwSession) begun() bool { return s.asked }

func (s *sotwSession) pending() int { return s.size }

func (s *sotwSession) spoilt() bool { return false }

func (s *sotwSession) unfit() string {
	if s.tooLong == 0 {
		return ""
	}
	n := s.tooLong
	s.tooLong = 0
	return fmt.Sprintf("a request of %d bytes: SotW names cannot be split", n)
}
