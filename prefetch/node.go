package prefetch

import (
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// node is a topic that is watched for an audience. Of the Prefetcher's goroutine, but for marked.
type node struct {
	audience *Audience
	key      cache.Key
	// watched is what it watches: the topic of the key, or its other side. One of entry and set is not nil
	// then.
	watched cache.Key
	entry   *entryWatch
	set     *setWatch
	// wanted is how many streams of the audience watch it. level is how many references lead to it from
	// what is wanted.
	wanted, level int
	// lease ends at that time. It is zero unless the node is ahead.
	lease time.Time
	// hash is of the resource that was read, 0 for none. again: it is to be read in any case.
	hash  uint64
	again bool
	// at is when its references were followed last.
	at           time.Time
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

// isAhead reports whether the relay watches the topic before the clients do.
func (n *node) isAhead() bool { return !n.lease.IsZero() }

// Changed implements cache.Watcher.
func (n *node) Changed() cache.Waker {
	if n.marked.Swap(true) {
		return nil
	}
	n.audience.of.inbox.Add(event{kind: changed, node: n})
	return n.audience.of
}

// Adopted implements cache.Prefetcher.
func (w *entryWatch) Adopted() { w.audience.of.inbox.Put(event{kind: adopted, node: w.node}) }

// watch has a node watch a topic, and nothing else. alone says that no client does.
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

// setLease has a node that no client wants stay until then.
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

// toRead has the references of a node followed, if they are not the same as before.
func (p *Prefetcher) toRead(n *node) {
	if !n.unread && Follows(n.key.TypeURL) {
		n.unread = true
		p.unread = append(p.unread, n)
		p.inbox.Wake()
	}
}

// toReadAgain has the references of a node followed, also if they are the same.
func (p *Prefetcher) toReadAgain(n *node) {
	n.again = true
	p.toRead(n)
}

// readAgain has the references of a node followed once more for another client, unless that was done a
// moment ago.
func (p *Prefetcher) readAgain(n *node, now time.Time) {
	if now.Sub(n.at) >= p.settings.Load().Lease/2 {
		p.toReadAgain(n)
	}
}
