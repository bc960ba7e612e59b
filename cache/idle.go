package cache

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// idle keeps the topics that nobody watches in the order in which they fell
// idle, and gives them up when their time has passed or when there are too
// many. All linger equally long, so the order of falling idle is the order of
// giving up, and one timer for the first is enough.
type idle struct {
	linger time.Duration
	giveUp func(*topic, time.Time) // called without a lock

	mu     sync.Mutex
	topics *simplelru.LRU[*topic, time.Time]
	limit  int
	// copies are those of the topics that are copies of sets, see Key.copies.
	copies *simplelru.LRU[*topic, time.Time]
	// groups are all topics, by what goes at once.
	groups idleGroups
	timer  *time.Timer // runs while there are topics
	closed bool
}

// maxIdleCopies bounds the copies of sets: each is as large as what it is made of, clients
// can have any number of them made, and to make one anew asks nobody for anything.
const maxIdleCopies = 100

func newIdle(o Options, giveUp func(*topic, time.Time)) *idle {
	limit := max(o.IdleEntries, 1)
	// One more than the limit, so that the LRU never drops one by itself.
	return &idle{
		linger: o.Linger, giveUp: giveUp, topics: newLRU(limit + 1), copies: newLRU(maxIdleCopies + 1), limit: limit,
		groups: newIdleGroups(o.IdleScopes),
	}
}

func newLRU(size int) *simplelru.LRU[*topic, time.Time] {
	lru, err := simplelru.NewLRU[*topic, time.Time](size, nil)
	if err != nil {
		panic(err) // only of a size below 1
	}
	return lru
}

// add notes that tp has been idle since then.
func (i *idle) add(tp *topic, since time.Time) {
	i.mu.Lock()
	if i.closed || tp.group == nil { // it was given up meanwhile
		i.mu.Unlock()
		return
	}
	if later, ok := i.topics.Peek(tp); ok && later.After(since) {
		// Somebody has come and left since, and was quicker to get here.
		i.mu.Unlock()
		return
	}
	i.topics.Add(tp, since)
	if tp.key.copies() {
		i.copies.Add(tp, since)
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
	switch {
	case i.topics.Len() > i.limit:
		old, since, _ = i.topics.RemoveOldest()
		i.copies.Remove(old)
	case i.copies.Len() > maxIdleCopies:
		old, since, _ = i.copies.RemoveOldest()
		i.topics.Remove(old)
	}
	return old, since
}

// remove notes that tp is watched again.
func (i *idle) remove(tp *topic) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.topics.Remove(tp)
	i.copies.Remove(tp)
	i.groups.busy(tp)
}

// expire gives up all whose time has passed, and sets the timer for the next.
func (i *idle) expire() {
	now := time.Now()
	for {
		i.mu.Lock()
		tp, since, ok := i.topics.GetOldest()
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
		i.topics.Remove(tp)
		i.copies.Remove(tp)
		i.mu.Unlock()
		i.giveUp(tp, since)
	}
}

func (i *idle) len() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.topics.Len()
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
