package session

import (
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// Names and sets to which a client has no right.
//
//   - A name is answered with an error. A full state is sent without the name: if it waited for the name, the client
//     would not receive the other resources. But no state is sent only to report that a name is missing.
//   - A wildcard or a glob is not answered. Any answer would mean that there is nothing. Responses that a client could
//     take for such an answer wait: see silence.go.
//   - A resource that is requested by an alias is also denied because of its own name, once that name is known.

// isDenial reports whether an error of Names.Key means that the client may not have the name.
func isDenial(err *cache.Error) bool { return err != nil && err.Code == codes.PermissionDenied }

// denial returns why the client may not have a name, or the resource that it stands for now; nil if it may.
func (s *nameSub) denial() *cache.Error {
	if entry := s.entry(); entry != nil {
		return s.ownDenial(entry.State().Resource)
	}
	if err := s.rare().err; isDenial(err) {
		return err
	}
	return nil
}

// answers reports that there is a subscription to a name, and that the client may have what the name stands for.
func (s *nameSub) answers() bool { return s != nil && (s.of().Rights == nil || s.denial() == nil) }

// ownDenial returns why the client may not have the resource that the name is an alias of now, and records that once.
func (s *nameSub) ownDenial(r *cache.Resource) *cache.Error {
	subs := s.of()
	if subs.Rights == nil {
		return nil
	}
	why := s.ownRight(r)
	if why == nil {
		if rare := s.rare(); rare != nil && rare.deniedFor != 0 {
			rare.deniedFor = 0
			subs.trouble.deniedOwn--
		}
		return nil
	}
	if rare := s.makeRare(); rare.deniedFor != r.Hash() {
		if rare.deniedFor == 0 {
			subs.troubled().deniedOwn++
		}
		rare.deniedFor = r.Hash()
		subs.Host.Refused(subs.typeURL, s.name(), why)
	}
	return asError(why)
}

// ownRight returns why the client may not have a resource that the name is, or was, an alias of.
func (s *nameSub) ownRight(r *cache.Resource) error {
	if r == nil || r.OwnName() == "" {
		return nil
	}
	return s.of().Rights.MayHaveOwn(s.entry().Key(), r.OwnName())
}

// deniedGlob reports that the name is that of a glob that the client may not have.
func (s *nameSub) deniedGlob() bool {
	return s.entry() == nil && isDenial(s.rare().err) && isGlob(s.name())
}

// leftUnanswered reports that a set is not answered, because the client may not have it.
func (c *Client) leftUnanswered(err *cache.Error) bool { return isDenial(err) && !c.errorsAlone }

// Denied reports whether the client may have nothing of what it has subscribed to, and why; why is nil if it has
// subscribed to nothing.
func (s *subscriptions) Denied() (is bool, why *cache.Error) {
	if s.wild != nil {
		if why = s.wild.err; !isDenial(why) {
			return false, nil
		}
	}
	named := s.named.len()
	switch {
	case named+len(s.byGlob) == 0:
		return true, why
	case len(s.byGlob) > 0, s.trouble == nil, s.trouble.refused+s.trouble.deniedOwn < named:
		return false, nil
	}
	for sub := range s.named.own() {
		if why = sub.denial(); why == nil {
			return false, nil
		}
	}
	return true, why
}

// leavesGlobUnanswered reports that a name is that of a glob that the client may not have, and that it is not answered.
func (s *SotW) leavesGlobUnanswered(sub *nameSub) bool {
	return s.Rights != nil && !s.errorsAlone && !s.polls && sub.deniedGlob()
}

// sentErrorAsRelay reports that the client is a relay that may not have a name, and is sent an error: because of the
// error it keeps what it holds, although a full state does not have the name.
func (s *SotW) sentErrorAsRelay(sub *nameSub) bool {
	return s.Relay && s.Rights != nil && sub.denial() != nil && !sub.deniedGlob()
}

// onlyDenies reports that a full state must not be sent. The client would read it as if what it may not have did not
// exist:
//
//   - The client may hold members of a glob, and would delete them.
//   - The client was sent nothing yet, it has a glob without an answer, and the state has no resource: it would take
//     that for the answer.
//   - The client may hold a resource that is denied by name. It would delete that resource, and the state has nothing
//     that it could use instead.
func (s *SotW) onlyDenies() bool {
	if s.Rights == nil {
		return false
	}
	glob, denied, gives := false, false, s.hasSets()
	for sub := range s.named.all() {
		held := sub.is(mayHold) || sub.sent() == sentResource
		switch {
		case sub.denial() == nil:
			status := sub.state().Status
			gives = gives || status == cache.Present || status == cache.Absent
		case held && !s.polls && sub.deniedGlob():
			return true
		default:
			glob = glob || s.leavesGlobUnanswered(sub)
			denied = denied || held
		}
	}
	return denied && !gives || glob && s.startsEmpty()
}

// startsEmpty reports that a full state would have no resource, and that the client was never sent a resource that it
// has to drop.
func (s *SotW) startsEmpty() bool {
	if s.held > 0 {
		return false
	}
	for set := range s.sets() {
		if set.sent || present(set) && set.set.Len() > 0 {
			return false
		}
	}
	for sub := range s.named.all() {
		if sub.state().Status == cache.Present {
			return false
		}
	}
	return true
}
