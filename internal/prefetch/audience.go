package prefetch

import (
	"sync/atomic"

	"github.com/xds-relay/xds-relay/cache"
)

// Names resolves names for the clients of an audience. One goroutine calls its methods.
type Names interface {
	// Key returns the topic of a name that a resource of the topic from contains. It returns false if clients may not
	// have the topic, if they have it already through another subscription, or if the relay leaves it to them.
	Key(from cache.Key, typeURL, name string) (cache.Key, bool)
	// Side returns the topic that clients watch for a topic that their names lead to: in a rollout they may get a
	// state that is not accepted yet.
	Side(cache.Key) cache.Key
}

// Audience is the set of all clients to whom names mean the same, and who may have the same.
type Audience struct {
	prefetcher *Prefetcher
	class      any
	names      Names
	streams    atomic.Int64 // changed with Prefetcher.mu
	nodes      map[cache.Key]*node
}

// Join adds a stream to the audience of a class, which is a comparable value. names makes the Names of that class.
// Leave ends the membership.
func (p *Prefetcher) Join(class any, names func() Names) *Audience {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.audiences[class]
	if a == nil {
		a = &Audience{prefetcher: p, class: class, names: names(), nodes: map[cache.Key]*node{}}
		p.audiences[class] = a
	}
	a.streams.Add(1)
	return a
}

// Leave ends a Join. The stream watches no topics any more. With the last stream, all nodes of the audience that are
// ahead end, too.
func (a *Audience) Leave() {
	a.prefetcher.mu.Lock()
	last := a.streams.Add(-1) == 0
	if last && a.prefetcher.audiences[a.class] == a {
		delete(a.prefetcher.audiences, a.class)
	}
	a.prefetcher.mu.Unlock()
	if last {
		a.prefetcher.inbox.Put(event{kind: left, audience: a})
	}
}

// Want notes that a stream of the audience watches a topic. Unwant ends that. They do not block.
func (a *Audience) Want(k cache.Key) { a.note(want, k) }

// Unwant ends a Want.
func (a *Audience) Unwant(k cache.Key) { a.note(unwant, k) }

func (a *Audience) note(kind eventKind, k cache.Key) {
	if Follows(k.TypeURL) {
		a.prefetcher.inbox.Put(event{kind: kind, audience: a, key: k})
	}
}
