package session

import "github.com/xds-relay/xds-relay/cache"

// Client is what the sessions of a stream know of their client, and what they use of its stream.
type Client struct {
	Abilities
	// Settles says that something of the stream moves by a new configuration, and has no answer yet: what
	// it refers to is not to go before.
	Settles bool
	Host    Host
	Topics  *cache.Reader
	Limit   int    // of a response, bytes
	Rights  Rights // nil if the client may have everything
	// Generation is that of the configuration by which names have their meaning, and clients rights.
	Generation uint32
}

// Host is a session's stream, as the session sees it.
type Host interface {
	Names
	Admission
	Refusals
	Changes
	// Side returns the topic that the client watches of one that its names lead to, and that it has
	// entered: in a rollout it may get what is not accepted yet.
	Side(cache.Key) cache.Key
	// OnNew says whether the client gets something that is not accepted yet: see Response.News.
	OnNew() bool
	// PendingLists are reused. NewPendingList makes one.
	PendingLists() Pool
}

// Names gives the names that a client uses their meaning.
type Names interface {
	// Key returns what a name (or cache.Wildcard) of that type means for the
	// client. The error, for the client's eyes, says why it can mean nothing; its code is
	// PERMISSION_DENIED if the client may not have it, and only then. Two clients
	// to whom one old-style name of a type means the same mean the same by all of them that
	// both may have.
	Key(typeURL, name string) (cache.Key, error)
}

// Rights are what a client may have.
type Rights interface {
	// MayHaveOwn returns why the client may not have what a topic has under another name, which
	// is an alias of that: own is the resource's own name. nil if it may.
	MayHaveOwn(k cache.Key, own string) error
	// MayHaveAll reports whether the client may have all old-style names of the scope and the type
	// of a key.
	MayHaveAll(names []string, of cache.Key) bool
	// Class is equal for two clients only if they may have the same names of a type, unless they
	// may have no name of it. It is 0 for clients that may have all names, or none.
	Class() uint64
}

// Admission bounds what a client subscribes to. Its errors are for the client's eyes.
type Admission interface {
	// Admits returns why there cannot be a subscription to a topic, as far as that can be
	// known without beginning it.
	Admits(cache.Key) error
	// Enter counts a subscription to a topic, or returns why there cannot be one. Leave undoes
	// it, with the key of the same topic or of the one that took its place. Move does both, without
	// the bounds: a name means another topic now.
	Enter(cache.Key) error
	Leave(cache.Key)
	Move(from, to cache.Key)
}

// Refusals records each name that the client is refused.
type Refusals interface {
	// Refused records a name that can mean nothing to the client, or for which there is a
	// limit. NotRequested records a name for which a request to the control plane has no room.
	Refused(typeURL, name string, why error)
	NotRequested(typeURL, name string, why *cache.Error)
}

// Changes is where subscriptions are marked that have changed. It may be called at any time.
type Changes interface {
	// Mark returns whom to wake, if anybody.
	Mark(Subscription) cache.Waker
	// Expire marks s when a resource's TTL has passed, unless that is stopped.
	Expire(r *cache.Resource, s Subscription) (stop func())
}

// Subscription is what can be marked as changed.
type Subscription interface {
	// Enter notes that the subscription is marked, and says whether it was not before. Leave
	// notes that it is not any more. Whoever has the marks guards both.
	Enter() bool
	Leave()
	// MoveToPending hands the subscription to its session.
	MoveToPending()
}

// Pool is a sync.Pool.
type Pool interface {
	Get() any
	Put(any)
}
