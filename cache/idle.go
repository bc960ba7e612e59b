package cache

import (
	"sync"
	"time"
)

// idle has the topics that nobody watches, in the order in which they became idle. It drops them
// when their linger time has passed, or when there are too many. Topics linger equally long, except
// those in unanswered. So one timer, for the oldest of both, is enough.
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
	// unanswered are the idle entries without an answer, and the time when that was last seen.
	unanswered lru[*topic, time.Time]
	// groups has all topics, in the groups that end together.
	groups idleGroups
	timer  *time.Timer // runs while there are topics
	due    time.Time   // when timer ends
	closed bool
}

// maxIdleCopies bounds the idle copies of sets. Each is as large as its set, and clients can
// make up any number of them. Making one again needs no request upstream.
const maxIdleCopies = 100

// maxIdleEmpty bounds the idle topics without a resource. Clients can make up any number of
// them, and requesting one again costs little.
const maxIdleEmpty = 256

// unansweredLinger is how long an entry lingers at most that has no answer: long enough for a client that
// reconnects. The name may be wrong, and some control planes answer a request only if they have all of its names. So
// what no client requests any more could delay the other clients. While no control plane can be reached, there is none
// that the name could silence.
//
// Sets linger as long as ever: a wildcard has a request of its own.
const unansweredLinger = 2 * time.Second

func newIdle(o Options, giveUp func(*topic, time.Time)) *idle {
	limit := max(o.IdleEntries, 1)
	return &idle{
		linger: o.Linger, giveUp: giveUp, limit: limit, groups: newIdleGroups(o.IdleScopes),
		topics: newLRU[*topic, time.Time](), copies: newLRU[*topic, time.Time](), empty: newLRU[*topic, time.Time](),
		unanswered: newLRU[*topic, time.Time](),
	}
}

// add adds a topic that has been idle since the given time. empty: the topic has no resource. unanswered: it is an entry
// without an answer, and lingers shortly.
func (i *idle) add(tp *topic, since time.Time, empty, unanswered bool) {
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
	if unanswered {
		i.unanswered.add(tp, since)
	}
	i.groups.lingers(tp)
	i.schedule()
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
	i.unanswered.remove(tp)
}

// remove removes a topic that is watched again.
func (i *idle) remove(tp *topic) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.forget(tp)
	i.groups.busy(tp)
}

// next returns the topic whose linger time passes first, nil if there is none. The caller holds mu.
func (i *idle) next() (tp *topic, due time.Time) {
	tp, since, ok := i.topics.oldest()
	if !ok {
		return nil, time.Time{}
	}
	due = since.Add(i.linger)
	if u, seen, ok := i.unanswered.oldest(); ok && seen.Add(unansweredLinger).Before(due) {
		return u, seen.Add(unansweredLinger)
	}
	return tp, due
}

// schedule sets the timer for the next topic, unless the timer ends before. The caller holds mu.
func (i *idle) schedule() {
	_, due := i.next()
	switch {
	case i.timer == nil:
		i.timer = time.AfterFunc(time.Until(due), i.expire)
	case due.Before(i.due):
		i.timer.Reset(time.Until(due))
	default:
		return
	}
	i.due = due
}

// expire drops the topics whose linger time has passed, and sets the timer for the next.
func (i *idle) expire() {
	now := time.Now()
	for {
		i.mu.Lock()
		tp, due := i.next()
		if tp == nil || i.closed {
			i.timer = nil
			i.mu.Unlock()
			return
		}
		if left := due.Sub(now); left > 0 {
			i.timer.Reset(left)
			i.due = due
			i.mu.Unlock()
			return
		}
		since, _ := i.topics.peek(tp)
		if now.Sub(since) < i.linger && i.mayStay(tp, now) {
			i.mu.Unlock()
			continue
		}
		i.forget(tp)
		i.mu.Unlock()
		i.giveUp(tp, since)
	}
}

// mayStay reports whether an entry that had no answer may linger on. The caller holds mu.
func (i *idle) mayStay(tp *topic, now time.Time) bool {
	st := tp.entry.Snapshot()
	switch {
	case !st.isUnanswered():
		i.unanswered.remove(tp) // the answer has come
		return true
	case st.Unreachable():
		i.unanswered.add(tp, now) // it may linger until the outage is over
		return true
	}
	return false
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
