package cache

import (
	"sync"
	"time"
)

// idle keeps the topics that nobody watches in the order in which they fell
// idle, and gives them up when their time has passed or when there are too
// many. All linger equally long, so the order of falling idle is the order of
// giving up, and one timer for the first is enough.
type idle struct {
	linger time.Duration
	giveUp func(*topic, time.Time) // called without a lock

	mu     sync.Mutex
	topics lru[*topic, time.Time]
	limit  int
	// copies are those of the topics that are copies of sets, see Key.copies.
	copies lru[*topic, time.Time]
	// hollow are those of the topics in which there was nothing when they fell idle.
	empty lru[*topic, time.Time]
	// groups are all topics, by what goes at once.
	groups idleGroups
	timer  *time.Timer // runs while there are topics
	closed bool
}

// maxIdleCopies bounds the copies of sets: each is as large as what it is made of, clients
// can have any number of them made, and to make one anew asks nobody for anything.
const maxIdleCopies = 100

// maxIdleHollow bounds the topics in which there is nothing: clients can make up any number of
// them, and to ask for one anew costs little.
const maxIdleEmpty = 256

func newIdle(o Options, giveUp func(*topic, time.Time)) *idle {
	limit := max(o.IdleEntries, 1)
	return &idle{
		linger: o.Linger, giveUp: giveUp, topics: newLRU[*topic, time.Time](), copies: newLRU[*topic, time.Time](), empty: newLRU[*topic, time.Time](), limit: limit,
		groups: newIdleGroups(o.IdleScopes),
	}
}

// add notes that tp has been idle since then. hollow says that there is nothing in it.
func (i *idle) add(tp *topic, since time.Time, hollow bool) {
	i.mu.Lock()
	if i.closed || tp.group == nil { // it was given up meanwhile
		i.mu.Unlock()
		return
	}
	if later, ok := i.topics.peek(tp); ok && later.After(since) {
		// Somebody has come and left since, and was quicker to get here.
		i.mu.Unlock()
		return
	}
	i.topics.add(tp, since)
	if tp.key.copies() {
		i.copies.add(tp, since)
	}
	if hollow {
		i.empty.add(tp, since)
	}
	i.groups.lingers(tp)
	if i.timer == nil {
		i.timer = time.AfterFunc(i.linger, i.expire)
	}
	i.mu.Unlock()
	for old, oldSince := i.tooMany(); old != nil; old, oldSince = i.tooMany() {
		i.giveUp(old, oldSince)
	}
	i.giveUpGroups()
}

// tooMany takes out one that is to be given up because there are too many, nil if there
// are not.
func (i *idle) tooMany() (old *topic, since time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for i.empty.len() > maxIdleEmpty {
		tp, at, _ := i.empty.removeOldest()
		if tp.entry != nil && !tp.entry.isEmpty() {
			continue // something has come since
		}
		i.forget(tp)
		return tp, at
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

// forget takes a topic out. The caller holds mu.
func (i *idle) forget(tp *topic) {
	i.topics.remove(tp)
	i.copies.remove(tp)
	i.empty.remove(tp)
}

// remove notes that tp is watched again.
func (i *idle) remove(tp *topic) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.forget(tp)
	i.groups.busy(tp)
}

// expire gives up all whose time has passed, and sets the timer for the next.
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
