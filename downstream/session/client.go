package session

import "github.com/xds-relay/xds-relay/cache"

// Client is what the sessions of a stream know of their client, and what they use of its stream.
type Client struct {
	Abilities
	Host   host
	Topics *cache.Reader
	Limit  int // of a response, bytes
}

// host is a session's stream, as the session sees it.
type host interface {
	meanings
	admission
	refusals
	changes
	// pendingLists are reused, and made by newPendingList.
	PendingLists() Pool
}

// meanings give the names that a client uses their meaning.
type meanings interface {
	// Key returns what a name (or cache.Wildcard) of that type means for the
	// client. The error, for the client's eyes, says why it can mean nothing. Two clients
	// to whom one old-style name of a type means the same mean the same by all of them.
	Key(typeURL, name string) (cache.Key, error)
}

// admission bounds what a client subscribes to. The errors are as those of meanings.
type admission interface {
	// admits returns why there cannot be a subscription to a topic, as far as that can be
	// known without beginning it.
	Admits(cache.Key) error
	// enter counts a subscription to a topic, or returns why there cannot be one. leave undoes
	// it, with the key of the same topic or of the one that took its place.
	Enter(cache.Key) error
	Leave(cache.Key)
}

// refusals record each name that the client is refused.
type refusals interface {
	// refused records a name that can mean nothing to the client, or for which there is a
	// limit; unasked of one that a request to the control plane has no room for.
	Refused(typeURL, name string, why error)
	Unasked(typeURL, name string, why *cache.Error)
}

// changes is where a stream's subscriptions that have changed are marked.
type changes interface {
	// mark returns whom to wake, if anybody.
	Mark(Subscription) cache.Waker
	// expire marks s when a resource's time to live has passed, unless that is stopped.
	Expire(r *cache.Resource, s Subscription) (stop func())
}

// Subscription is one client's interest in a name or a wildcard.
type Subscription interface {
	// enter notes that the subscription is marked, and says whether it was not
	// before; leave that it is not any more. That is guarded by who has the marks.
	Enter() bool
	Leave()
	// moveToPending hands the subscription to its session.
	MoveToPending()
}

// Pool is a sync.Pool.
type Pool interface {
	Get() any
	Put(any)
}
