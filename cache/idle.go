package cache

import (
	"sync"
	"time"
)

// idle has the topics that nobody watches, in the order in which they became idle. It drops them
// when their linger time has passed, or when there are too many. All topics linger equally long, so
// one timer, for the oldest, is enough.
type idle struct {
	giveUp func(*topic, time.Time) // called without a lock

	mu     sync.Mutex
	linger time.Duration
	topics lru[*topic, time.Time]
	limit  int
	// copies are the idle topics that are copies of sets: see Key.copies.
	copies lru[*topic, time.Time]
	// empty are the idle topics that had no resource when they became idle.
	empty lru[*topic, time.Time]
	// groups has all topics, in the groups that end together.
	groups idleGroups
	timer  *time.Timer // runs while there are topics
	closed bool
}

// maxIdleCopies bounds the idle copies of sets. Each is as large as its set, and clients can
// make up any number of them. Making one again needs no request upstream.
const maxIdleCopies = 100

// maxIdleEmpty bounds the idle topics without a resource. Clients can make up any number of
// them, and requesting one again costs little.
const maxIdleEmpty = 256

func newIdle(o Options, giveUp func(*topic, time.Time)) *idle {
	limit := max(o.IdleEntries, 1)
	return &idle{
		linger: o.Linger, giveUp: giveUp, topics: newLRU[*topic, time.Time](), copies: newLRU[*topic, time.Time](), empty: newLRU[*topic, time.Time](), limit: limit,
		groups: newIdleGroups(o.IdleScopes),
	}
}

// add adds a topic that has been idle since the given time. empty: the topic has no resource.
func (i *idle) add(tp *topic, since time.Time, empty bool) {
	i.mu.Lock()
	if i.closed || tp.group == nil { // the topic has ended in the meantime
		i.mu.Unlock()
		return
	}
	if later, ok := i.topics.peek(tp); ok && later.After(since) {
		// A later watcher has come and left, and its call of add was faster.
		i.mu.Unlock()
		return
	}
	i.topics.add(tp, since)
	if tp.key.copies() {
		i.copies.add(tp, since)
	}
	if empty {
		i.empty.add(tp, since)
	}
	i.groups.lingers(tp)
	if i.timer == nil {
		i.timer = time.AfterFunc(i.linger, i.expire)
	}
	i.mu.Unlock()
	i.dropExcess()
}

// dropExcess drops topics until there are not too many.
func (i *idle) dropExcess() {
	for old, oldSince := i.tooMany(); old != nil; old, oldSince = i.tooMany() {
		i.giveUp(old, oldSince)
	}
	i.giveUpGroups()
}

// tooMany removes and returns a topic that has to end because there are too many topics, nil if
// there are not.
func (i *idle) tooMany() (old *topic, since time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for i.empty.len() > maxIdleEmpty {
		tp, since, _ := i.empty.removeOldest()
		if tp.entry != nil && !tp.entry.isEmpty() {
			continue // it has a resource now
		}
		i.forget(tp)
		return tp, since
	}
	switch {
	case i.topics.len() > i.limit:
		old, since, _ = i.topics.oldest()
	case i.copies.len() > maxIdleCopies:
		old, since, _ = i.copies.oldest()
	default:
		return nil, time.Time{}
	}
	i.forget(old)
	return old, since
}

// forget removes a topic. The caller holds mu.
func (i *idle) forget(tp *topic) {
	i.topics.remove(tp)
	i.copies.remove(tp)
	i.empty.remove(tp)
}

// remove removes a topic that is watched again.
func (i *idle) remove(tp *topic) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.forget(tp)
	i.groups.busy(tp)
}

// expire drops the topics whose linger time has passed, and sets the timer for the next.
func (i *idle) expire() {
	now := time.Now()
	for {
		i.mu.Lock()
		tp, since, ok := i.topics.oldest()
		if !ok || i.closed {
			i.timer = nil
			i.mu.Unlock()
			return
		}
		if left := i.linger - now.Sub(since); left > 0 {
			i.timer.Reset(left)
			i.mu.Unlock()
			return
		}
		i.forget(tp)
		i.mu.Unlock()
		i.giveUp(tp, since)
	}
}

func (i *idle) len() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.topics.len()
}

func (i *idle) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	if i.timer != nil {
		i.timer.Stop()
		i.timer = nil
	}
}
