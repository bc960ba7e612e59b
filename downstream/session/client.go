package session

import "github.com/xds-relay/xds-relay/cache"

// Client is what the sessions of a stream know about their client, and what they use of its stream.
type Client struct {
	Abilities
	// Settles is set while a subscription of the stream has moved because of a new configuration and has no answer
	// yet. Until it has one, nothing is removed: what the client has may refer to it.
	Settles bool
	Host    Host
	Topics  *cache.Reader
	Limit   int    // of a response, bytes
	Rights  Rights // nil if the client may have everything
	// Generation is the generation of the configuration that gives the names their meaning, and the client its rights.
	Generation uint32
	// HasSecrets: the client subscribes to Secrets on its stream.
	HasSecrets bool
	// Answered: the client was sent something on its stream.
	Answered bool
	// polls: there is one request, and one response. See Poll.
	polls bool
}

// Host is a session's stream, as the session sees it.
type Host interface {
	Names
	Admission
	Refusals
	Changes
	// Side returns the topic that the client watches in place of the given one, to which its names resolve and which it
	// has entered: in a rollout the client may get what is not accepted yet.
	Side(cache.Key) cache.Key
	// OnNew reports whether the client gets something that is not accepted yet: see Response.News.
	OnNew() bool
	// MarksComplete reports whether responses in delta say when the first answer for a set is complete.
	MarksComplete() bool
	// ManyBegun is called whenever the client has begun ManyNames more subscriptions to names.
	ManyBegun()
	// PendingLists has lists for reuse. NewPendingList makes one.
	PendingLists() Pool
}

// Names resolves the names that a client uses.
type Names interface {
	// Key returns what a name (or cache.Wildcard) of that type means for the client. The error, which the client is
	// sent, says why the name is refused; its code is PERMISSION_DENIED if and only if the client may not have the
	// name. If one old-style name of a type means the same to two clients, all old-style names of the type that both
	// may have mean the same to them.
	Key(typeURL, name string) (cache.Key, error)
}

// Rights are what a client may have.
type Rights interface {
	// MayHaveOwn returns why the client may not have the resource of a topic whose name is an alias; nil if the client
	// may have it. own is the resource's own name.
	MayHaveOwn(k cache.Key, own string) error
	// MayHaveAll reports whether the client may have all these old-style names in the scope and of the type of a key.
	MayHaveAll(names []string, of cache.Key) bool
	// Class is equal for two clients only if they may have the same names of a type, or may have no name of it. It is 0
	// for clients that may have all names, or none.
	Class() uint64
}

// Admission bounds what a client subscribes to. The client is sent its errors.
type Admission interface {
	// Admits returns why there cannot be a subscription to a topic, as far as that is known before it begins.
	Admits(cache.Key) error
	// Enter counts a subscription to a topic, or returns why there cannot be one. Leave undoes that, with the key of
	// the same topic or of the one that has replaced it. Move does both without the bounds, for a name that means
	// another topic now.
	Enter(cache.Key) error
	Leave(cache.Key)
	Move(from, to cache.Key)
}

// Refusals records each name that is refused to the client.
type Refusals interface {
	// Refused records a name that the relay refuses, also because of a limit. NotRequested records a name for which a
	// request to the control plane has no room.
	Refused(typeURL, name string, why error)
	NotRequested(typeURL, name string, why *cache.Error)
}

// Changes marks the subscriptions that have changed. It may be called at any time.
type Changes interface {
	// Mark returns the Waker to call, or nil.
	Mark(Subscription) cache.Waker
	// Expire marks s when a resource's TTL has expired, unless stop is called.
	Expire(r *cache.Resource, s Subscription) (stop func())
}

// Subscription can be marked as changed.
type Subscription interface {
	// Enter marks the subscription, and reports whether it was unmarked before. Leave removes the mark. The owner of
	// the marks guards both.
	Enter() bool
	Leave()
	// MoveToPending passes the subscription to its session.
	MoveToPending()
}

// Pool is a sync.Pool.
type Pool interface {
	Get() any
	Put(any)
}
