package prefetch

import (
	"container/list"

	"github.com/xds-relay/xds-relay/cache"
)

// known caches the references of resources that were read.
type known struct {
	// contents has the names in resources by their content, for several audiences and for resources that are sent
	// again.
	contents lru[contentID]
	// names has the names that each topic's resource contained when it was last read, for when the resource is
	// missing.
	names lru[cache.Key]
}

// contentID identifies the content of a resource.
type contentID struct {
	typeURL string
	hash    uint64
}

// mostKnown bounds each of the two caches, in bytes.
const mostKnown = 4 << 20

func newKnown() known {
	return known{newLRU[contentID](), newLRU[cache.Key]()}
}

// lru has the most recently used names, up to mostKnown bytes.
type lru[K comparable] struct {
	elements map[K]*list.Element // of remembered
	order    *list.List          // the newest first
	bytes    int
}

type remembered[K comparable] struct {
	key     K
	targets []target
}

func newLRU[K comparable]() lru[K] { return lru[K]{map[K]*list.Element{}, list.New(), 0} }

func (l *lru[K]) get(key K) (targets []target, ok bool) {
	e := l.elements[key]
	if e == nil {
		return nil, false
	}
	l.order.MoveToFront(e)
	return e.Value.(*remembered[K]).targets, true
}

func (l *lru[K]) put(key K, targets []target) {
	if e := l.elements[key]; e != nil {
		l.drop(e)
	}
	l.elements[key] = l.order.PushFront(&remembered[K]{key, targets})
	l.bytes += sizeOf(targets)
	for l.bytes > mostKnown {
		l.drop(l.order.Back())
	}
}

func (l *lru[K]) drop(e *list.Element) {
	oldest := l.order.Remove(e).(*remembered[K])
	delete(l.elements, oldest.key)
	l.bytes -= sizeOf(oldest.targets)
}

// sizeOf estimates the memory of an entry in bytes, including the name in its key.
func sizeOf(targets []target) int {
	const entry, each = 512, 32
	n := entry
	for i := range targets {
		n += each + len(targets[i].name)
	}
	return n
}
