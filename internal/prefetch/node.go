package prefetch

import (
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// node is a topic that is watched for an audience. Only the Prefetcher's goroutine uses it, except marked.
type node struct {
	audience *Audience
	key      cache.Key
	// watched is the topic that it watches: that of key, or the one that Names.Side returns. Exactly one of entry and
	// set is not nil while it watches one.
	watched cache.Key
	entry   *entryWatch
	set     *setWatch
	// wanted counts the audience's streams that watch it. level is the number of references between it and a wanted
	// node.
	wanted, level int
	// lease is when the lease ends. It is zero unless the node is ahead.
	lease time.Time
	// hash is the hash of the resource that was read last, 0 for none. again: read it even if the hash is the same.
	hash  uint64
	again bool
	// time is when its references were last followed.
	time         time.Time
	unread, gone bool
	marked       atomic.Bool // a change is in the inbox
}

// entryWatch is the watch of a name.
type entryWatch struct {
	cache.PrefetchWatch
	*node
}

// setWatch is the watch of a wildcard or a glob.
type setWatch struct {
	cache.SetWatch
	*node
	set *cache.Set
}

// isAhead reports whether the relay watches the topic and no client has requested it yet.
func (n *node) isAhead() bool { return !n.lease.IsZero() }

// Changed implements cache.Watcher.
func (n *node) Changed() cache.Waker {
	if n.marked.Swap(true) {
		return nil
	}
	n.audience.prefetcher.inbox.Add(event{kind: changed, node: n})
	return n.audience.prefetcher
}

// Adopted implements cache.Prefetcher.
func (w *entryWatch) Adopted() { w.audience.prefetcher.inbox.Put(event{kind: adopted, node: w.node}) }

// watch makes a node watch the topic k instead of the one that it watches now. alone says that no client watches it.
func (p *Prefetcher) watch(n *node, k cache.Key) (alone bool) {
	if k == n.watched {
		return false
	}
	entry, set := n.entry, n.set
	n.watched, n.entry, n.set = k, nil, nil
	if k.IsSet() {
		n.set = &setWatch{node: n}
		n.set.set = p.topics.WatchSet(k, n.set)
	} else {
		n.entry = &entryWatch{node: n}
		_, alone = p.topics.Prefetch(k, n.entry)
	}
	p.unwatch(entry, set)
	return alone
}

func (p *Prefetcher) unwatch(entry *entryWatch, set *setWatch) {
	if entry != nil {
		p.topics.Unwatch(entry)
	}
	if set != nil {
		p.topics.Unwatch(set)
	}
}

// remove ends a node.
func (p *Prefetcher) remove(n *node) {
	p.endLease(n)
	p.unwatch(n.entry, n.set)
	n.gone, n.wanted, n.entry, n.set = true, 0, nil, nil
	delete(n.audience.nodes, n.key)
}

// setLease sets the lease of a node that no client wants yet.
func (p *Prefetcher) setLease(n *node, until time.Time) {
	if !n.isAhead() {
		p.ahead[n.key.Scope]++
		p.counts.ahead.Add(1)
	}
	n.lease = until
	p.leases.Set(n, until)
}

// endLease notes that a node is not ahead any more.
func (p *Prefetcher) endLease(n *node) {
	if !n.isAhead() {
		return
	}
	n.lease = time.Time{}
	p.leases.End(n)
	p.counts.ahead.Add(-1)
	if p.ahead[n.key.Scope]--; p.ahead[n.key.Scope] == 0 {
		delete(p.ahead, n.key.Scope)
	}
}

// toRead schedules a node to have its references followed if its resource has changed.
func (p *Prefetcher) toRead(n *node) {
	if !n.unread && Follows(n.key.TypeURL) {
		n.unread = true
		p.unread = append(p.unread, n)
		p.inbox.Wake()
	}
}

// toReadAgain schedules a node to have its references followed even if its resource has not changed.
func (p *Prefetcher) toReadAgain(n *node) {
	n.again = true
	p.toRead(n)
}

// readAgain follows the references of a node again for another client, unless that happened recently.
func (p *Prefetcher) readAgain(n *node, now time.Time) {
	if now.Sub(n.time) >= p.settings.Load().Lease/2 {
		p.toReadAgain(n)
	}
}
