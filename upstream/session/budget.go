package session

import (
	"fmt"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/wire"
)

// A control plane reads requests up to a length, and fails the stream of all clients at a
// longer one. In delta names are split over requests, in SotW all names of a type are in
// each request. A name that would make one too long is not requested, and its clients are
// sent an error. What was requested before stays; when some of it is given up, names that were
// refused take the place.
//
// The last part of a SotW request is for clients that ask for little: otherwise one that
// asks for too much keeps all others from asking for anything new. How much counts as little
// shrinks with the room that is left, down to a fixed part of all.

const (
	// spareBytes are left in each request for a version, a nonce and the reason of a NACK,
	// or a quarter if that is less.
	spareBytes = 16 << 10
	// modestPart is the part of a request's names that only modest clients can use. A client
	// is modest whose names are at most the modestPart-th part of the room that is left, or
	// the modestShare-th part of all.
	modestPart  = 4
	modestShare = 64
	// The time until it is seen whether what was refused has a place now: the shorter
	// after something was given up.
	shortestReview = 2 * time.Second
	longestReview  = 30 * time.Second
)

// roomFor is how many bytes of names there may be in a request of a type, if there is
// nothing else in it.
func roomFor(typeURL string, limit int) int {
	return limit - proto.Size(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL})
}

// sotwRoomFor is how many there may be in a request that also has an ACK or NACK.
func sotwRoomFor(typeURL string, limit int) int {
	return roomFor(typeURL, limit) - min(spareBytes, limit/4)
}

// size is the length of a subscription in a request.
func (c *core) sizeOf(sub *subscription) int {
	if l := locator(sub.name, c.params); l != nil {
		return sizeMessage(l)
	}
	return wire.SizeString(sub.name)
}

// refuse notes that a subscription is not requested, and that the cache is to know it.
func refuse(of Subscriptions, sub *subscription, why *cache.Error) {
	sub.refused = true
	if sub.failure == nil || !sub.failure.Refused {
		of.fail(sub, why, &of.common().refusals)
	}
}

// takeRefusals returns what the cache does not know yet of what was refused.
func (c *core) takeRefusals() cache.Update {
	u := c.refusals
	c.refusals = cache.Update{}
	return u
}

// tooLong is the error of a name that does not fit into any request.
func tooLong(size int) *cache.Error {
	return &cache.Error{
		Code:    codes.ResourceExhausted,
		Refused: true,
		Message: fmt.Sprintf("its name takes %d bytes in a request to the control plane, which is, with its type, more than max_request_bytes allows", size),
	}
}

// full is the error of a name for which there is no room.
func full(room int) *cache.Error {
	return &cache.Error{
		Code:    codes.ResourceExhausted,
		Refused: true,
		Message: fmt.Sprintf("all names of a type go into one request to the control plane (SotW), in which max_request_bytes allows %d bytes of names: "+
			"there is no room for more, or the rest is reserved for clients that request little", room),
	}
}

// budget is how many bytes of names there are in a session's requests.
type budget struct {
	room, used int
	refused    []*subscription // in the order in which they came
	// reviewAt is when it is seen whether what was refused has a place, zero if nothing
	// was. reviewed is when that was last done, and review the time to the next.
	reviewAt, reviewed time.Time
	review             time.Duration
}

// admit says whether there is room for a subscription, which then counts as sent.
func (b *budget) admit(n *Names, sub *subscription) bool {
	size := n.sizeOf(sub)
	if b.used+size > b.room {
		return false
	}
	little := max(b.room/modestShare, (b.room-b.used)/modestPart)
	if b.used+size > b.room-b.room/modestPart && n.modest != nil &&
		!n.modest(cache.Key{Scope: n.scope, TypeURL: n.typeURL, Name: sub.name}, int64(little)) {
		return false
	}
	b.used += size
	sub.sent, sub.refused = true, false
	return true
}

// release gives back the room of what was given up.
func (b *budget) release(n *Names, sub *subscription) {
	b.used -= n.sizeOf(sub)
	if soon := b.reviewed.Add(shortestReview); !b.reviewAt.IsZero() && soon.Before(b.reviewAt) {
		b.reviewAt, b.review = soon, 0
	}
}

// refuse keeps a subscription until there is room for it.
func (b *budget) refuse(now time.Time, n *Names, sub *subscription) {
	if size := n.sizeOf(sub); size > b.room {
		refuse(n, sub, tooLong(size)) // for good
		return
	}
	refuse(n, sub, full(b.room))
	b.refused = append(b.refused, sub)
	if b.reviewAt.IsZero() {
		b.reviewed, b.review = now, shortestReview
		b.reviewAt = now.Add(b.review)
	}
}

// due says that what was refused is to be looked at again.
func (b *budget) due(now time.Time) bool { return !b.reviewAt.IsZero() && !now.Before(b.reviewAt) }

// take returns what was refused and is wanted still, to be admitted or refused anew.
func (b *budget) take(now time.Time, n *Names) (again []*subscription) {
	for _, sub := range b.refused {
		if n.subs[sub.name] == sub && sub.wanted && !sub.sent {
			again = append(again, sub)
		}
	}
	b.refused, b.reviewAt = nil, time.Time{}
	if len(again) > 0 {
		b.reviewed, b.review = now, min(max(2*b.review, shortestReview), longestReview)
		b.reviewAt = now.Add(b.review)
	}
	return again
}
