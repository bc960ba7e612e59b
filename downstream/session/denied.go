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

// ownDenial returns why the client may not have a resource that the name is an alias of.
func (s *nameSub) ownDenial(r *cache.Resource) *cache.Error {
	subs := s.of()
	if subs.Rights == nil || r == nil || r.OwnName() == "" {
		return nil
	}
	why := subs.Rights.MayHaveOwn(s.entry().Key(), r.OwnName())
	if why == nil {
		return nil
	}
	if rare := s.makeRare(); rare.deniedFor != r.Hash() {
		rare.deniedFor = r.Hash()
		subs.Host.Refused(subs.typeURL, s.name(), why)
	}
	return asError(why)
}

// deniedGlob says that the name is that of a glob which the client may not have.
func (s *nameSub) deniedGlob() bool {
	return s.entry() == nil && isDenial(s.rare().err) && isGlob(s.name())
}

// untold says that the client is not told of a set that it may not have.
func (c *Client) untold(err *cache.Error) bool { return isDenial(err) && !c.errorsAlone }

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
	case len(s.byGlob) > 0, s.trouble == nil, s.trouble.refused < named:
		return false, nil
	}
	for sub := range s.named.own() {
		if why = sub.denial(); why == nil {
			return false, nil
		}
	}
	return true, why
}

// onlyDenies says that a full state would take from the client what it may hold and may not have,
// and give it nothing for that: or that this may be any members of a glob.
func (s *SotW) onlyDenies() bool {
	if s.Rights == nil {
		return false
	}
	denied, gives := false, s.hasSets()
	for sub := range s.named.all() {
		held := sub.is(mayHold) || sub.sent() == sentResource
		switch {
		case sub.denial() == nil:
			status := sub.state().Status
			gives = gives || status == cache.Present || status == cache.Absent
		case held && sub.deniedGlob():
			return true
		default:
			denied = denied || held
		}
	}
	return denied && !gives
}
