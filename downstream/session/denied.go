package session

import (
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// What a client may not have.
//
//   - A name is answered with an error. In a full state it is missing too: the client would not
//     receive what it may have otherwise. But no state is sent only to say that.
//   - A wildcard or a glob is not answered. Any answer would say that there is nothing. What comes
//     close to one waits, as long as that is so: see silence.go.
//   - What is asked for by an alias is denied by the resource's own name, too, when that is known.

// isDenial says that an error of Names.Key is that the client may not have it.
func isDenial(err *cache.Error) bool { return err != nil && err.Code == codes.PermissionDenied }

// denial returns why the client may not have a name, or what it stands for now; nil if it may.
func (s *nameSub) denial() *cache.Error {
	if entry := s.entry(); entry != nil {
		return s.ownDenial(entry.State().Resource)
	}
	if err := s.rare().err; isDenial(err) {
		return err
	}
	return nil
}

// answers says that there is a subscription to a name, and that the client may have what it stands
// for.
func (s *nameSub) answers() bool { return s != nil && (s.of().Rights == nil || s.denial() == nil) }

// ownDenial returns why the client may not have the resource that the name is an alias of now, and
// notes that once.
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

// deniedGlob says that the name is that of a glob which the client may not have.
func (s *nameSub) deniedGlob() bool {
	return s.entry() == nil && isDenial(s.rare().err) && isGlob(s.name())
}

// leftUnanswered says that a set is not answered, because the client may not have it.
func (c *Client) leftUnanswered(err *cache.Error) bool { return isDenial(err) && !c.errorsAlone }

// Denied says whether the client may have nothing of what it is subscribed to, and why; that is nil
// if it is subscribed to nothing.
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

// leavesGlobUnanswered says that a name is that of a glob which the client may not have, and that it is
// not answered.
func (s *SotW) leavesGlobUnanswered(sub *nameSub) bool {
	return s.Rights != nil && !s.errorsAlone && !s.once && sub.deniedGlob()
}

// sentErrorAsRelay says that a relay may not have a name, and is sent an error: with that it keeps what
// it holds, although a full state does not have it.
func (s *SotW) sentErrorAsRelay(sub *nameSub) bool {
	return s.Relay && s.Rights != nil && sub.denial() != nil && !sub.deniedGlob()
}

// onlyDenies says that a full state would tell the client that there is nothing of what it may not
// have, and is not to be sent:
//
//   - It may hold members of a glob, and would delete them.
//   - It was sent nothing yet, has a glob without an answer, and the state has no resource: it would
//     take that for the answer.
//   - It may hold what it is denied by name, would delete that, and be given nothing instead.
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
		case held && !s.once && sub.deniedGlob():
			return true
		default:
			glob = glob || s.leavesGlobUnanswered(sub)
			denied = denied || held
		}
	}
	return denied && !gives || glob && s.startsEmpty()
}

// startsEmpty says that a full state would be without any resource, and the client was sent none
// before that it has to drop.
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
