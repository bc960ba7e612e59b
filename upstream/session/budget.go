package session

import (
	"fmt"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// A control plane reads requests up to a length. A longer request would end the stream, which all
// clients share. In delta, names are split over several requests. In SotW, each request has all names
// of a type. A name that would make a request too long is not requested, and its clients
// get an error. Names that were requested before stay. When some of them are given up, refused names
// take their place.
//
// The last part of a SotW request is reserved for modest clients, which request little. Otherwise one
// client with too many names would keep all others from requesting any new name. How much counts as
// little shrinks with the room that is left, down to a fixed part of the whole.

const (
	// spareBytes are reserved in each request for a version, a nonce and the reason of a NACK,
	// or a quarter of the request if that is less.
	spareBytes = 16 << 10
	// The last 1/modestPart of a request's names is for modest clients only. A client
	// is modest if its names have at most 1/modestPart of the room that is left, or
	// 1/modestShare of the whole room.
	modestPart  = 4
	modestShare = 64
	// The time until refused names are tried again. It is the shorter one after names were
	// given up.
	shortestReview = 2 * time.Second
	longestReview  = 30 * time.Second
)

// roomFor returns how many bytes of names there may be in a request of a type that has
// nothing else.
func roomFor(typeURL string, limit int) int {
	return limit - proto.Size(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL})
}

// sotwRoomFor returns how many there may be in a request that also has an ACK or NACK.
func sotwRoomFor(typeURL string, limit int) int {
	return roomFor(typeURL, limit) - min(spareBytes, limit/4)
}

// sizeOf returns the length of a subscription in a request.
func (c *core) sizeOf(sub *subscription) int {
	if l := locator(sub.name, c.params); l != nil {
		return sizeMessage(l)
	}
	return wire.SizeString(sub.name)
}

// refuse notes that a subscription is not requested, and queues the error for the cache.
func refuse(of Subscriptions, sub *subscription, why *cache.Error) {
	sub.refused = true
	if sub.failure == nil || !sub.failure.Refused {
		of.fail(sub, why, &of.common().refusals)
	}
}

// takeRefusals returns the errors of refused subscriptions that the cache has not received yet.
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

// budget bounds the bytes of names in a session's requests.
type budget struct {
	room, used int
	refused    []*subscription // in the order in which they came
	// reviewAt is when refused names are tried again, zero if there are none.
	// reviewed is when that was last done, and review the time to the next.
	reviewAt, reviewed time.Time
	review             time.Duration
}

// admit reports whether there is room for a subscription. If so, the subscription counts as sent.
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

// release gives back the room of a name that was given up.
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

// due reports whether refused names must be tried again.
func (b *budget) due(now time.Time) bool { return !b.reviewAt.IsZero() && !now.Before(b.reviewAt) }

// take returns the refused names that are still wanted. The caller admits or refuses each again.
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
