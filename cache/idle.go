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
	timer  *time.Timer // runs while there are topics
	closed bool
}

func newIdle(linger time.Duration, limit int, giveUp func(*topic, time.Time)) *idle {
	limit = max(limit, 1)
	// One more than the limit, so that the LRU never drops one by itself.
	topics, err := simplelru.NewLRU[*topic, time.Time](limit+1, nil)
	if err != nil {
		panic(err) // only of a size below 1
	}
	return &idle{linger: linger, giveUp: giveUp, topics: topics, limit: limit}
}

// add notes that tp has been idle since then.
func (i *idle) add(tp *topic, since time.Time) {
	i.mu.Lock()
	if i.closed {
		i.mu.Unlock()
		return
	}
	if later, ok := i.topics.Peek(tp); ok && later.After(since) {
		// Somebody has come and left since, and was quicker to get here.
		i.mu.Unlock()
		return
	}
	i.topics.Add(tp, since)
	var old *topic
	var oldSince time.Time
	if i.topics.Len() > i.limit {
		old, oldSince, _ = i.topics.RemoveOldest()
	}
	if i.timer == nil {
		i.timer = time.AfterFunc(i.linger, i.expire)
	}
	i.mu.Unlock()
	if old != nil {
		i.giveUp(old, oldSince)
	}
}

// remove notes that tp is watched again.
func (i *idle) remove(tp *topic) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.topics.Remove(tp)
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
