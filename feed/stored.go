package feed

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/store"
)

// What is stored of a topic is read from the disk when the topic begins, and once more when it has waited long enough
// and is served: without a lock, because a disk can take any time.

const (
	// loadsWithin is how long a delivery, or the first request of a type, waits for what is stored of a topic that has
	// just begun: guard and rollout compare the first answer with it. After that, the topic counts as not stored until
	// the disk answers, and so do others that begin.
	loadsWithin = 5 * time.Second
	// flushMost is how long a topic waits until everything that was noted is written, before it is served, and Close until
	// nothing is read.
	flushMost = time.Second
	// atOnce is how many topics are read, or served, between two times that the lock is released.
	atOnce = 1000
)

// loads are the topics whose stored state is being read.
type loads struct {
	waits   atomic.Int64 // how many there are
	mu      sync.Mutex   // comes last
	topics  map[cache.Key]*load
	queue   []cache.Key
	running bool
	hangs   bool // the disk has not answered in time, and not since
}

// load is the reading of one topic.
type load struct {
	until time.Time // when others no longer wait for it
	begun int       // how often the topic has begun, and is still to be read
	done  chan struct{}
}

// expectLoad has deliveries wait for what is stored of a topic that is about to begin.
func (f *Feed) expectLoad(k cache.Key) {
	if f.keeper == nil {
		return
	}
	l := &f.loads
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.topics == nil {
		l.topics = map[cache.Key]*load{}
	}
	if l.topics[k] == nil {
		until := time.Now()
		if !l.hangs {
			until = until.Add(loadsWithin)
		}
		l.topics[k] = &load{until: until, done: make(chan struct{})}
		l.waits.Add(1)
	}
	l.topics[k].begun++
}

// load reads in another goroutine what is stored of a topic. That it has begun was noted: the keeper takes what is read
// only of topics that it knows.
func (f *Feed) load(k cache.Key) {
	if f.keeper == nil {
		return
	}
	l := &f.loads
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, k)
	if !l.running && !f.ended.Load() {
		l.running = true
		f.reading.Go(f.loadAll)
	}
}

// loadAll reads topics until there are no more.
func (f *Feed) loadAll() {
	l := &f.loads
	for {
		l.mu.Lock()
		keys := l.queue[:min(len(l.queue), atOnce)]
		l.queue = l.queue[len(keys):]
		l.running = len(keys) > 0
		l.mu.Unlock()
		if len(keys) == 0 {
			return
		}
		found := f.lookAll(keys)
		f.mu.Lock()
		if !f.closed {
			f.takeNotes(time.Now())
			for i := range found {
				f.keeper.Found(&found[i])
			}
		}
		f.mu.Unlock()
		l.mu.Lock()
		l.hangs = false
		for _, k := range keys {
			of := l.topics[k]
			if of.begun--; of.begun == 0 {
				close(of.done)
				delete(l.topics, k)
				l.waits.Add(-1)
			}
		}
		l.mu.Unlock()
	}
}

// lookAll reads what is stored of topics, until the Feed is closed.
func (f *Feed) lookAll(keys []cache.Key) (found []store.Stored) {
	for _, k := range keys {
		if f.ended.Load() {
			break
		}
		found = append(found, f.look(k))
	}
	return found
}

// awaitReading waits, for a bounded time, until nothing reads what is stored.
func (f *Feed) awaitReading() {
	done := make(chan struct{})
	go func() { defer close(done); f.reading.Wait() }()
	patience := time.NewTimer(flushMost)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
}

// awaitLoads waits, for a bounded time, until what is stored of the topics of updates was read. The caller does not hold
// mu.
func (f *Feed) awaitLoads(updates []cache.Update) {
	if f.loads.waits.Load() == 0 {
		return
	}
	for i := range updates {
		u := &updates[i]
		k := cache.Key{Scope: u.Scope, TypeURL: u.TypeURL}
		for j := range u.Changes {
			k.Name = u.Changes[j].Name
			f.awaitLoad(k)
		}
		for j := range u.Sets {
			k.Name = u.Sets[j].Name
			f.awaitLoad(k)
		}
	}
}

func (f *Feed) awaitLoad(k cache.Key) {
	f.loads.mu.Lock()
	l := f.loads.topics[k]
	f.loads.mu.Unlock()
	if l == nil {
		return
	}
	patience := time.NewTimer(time.Until(l.until))
	defer patience.Stop()
	select {
	case <-l.done:
	case <-patience.C:
		f.loads.mu.Lock()
		f.loads.hangs = f.loads.hangs || f.loads.topics[k] == l
		f.loads.mu.Unlock()
	}
}

// Recall returns a function that yields the stored resources of a topic that came from the server with an address, and also
// from others if versions of other servers mean the same: see upstream.Options.Recall.
func (s *Link) Recall(address string, others bool) func(cache.Key, func(string, *cache.Resource)) {
	f := s.feed
	return func(k cache.Key, yield func(string, *cache.Resource)) {
		f.awaitLoad(k)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.takeNotes(time.Now())
		f.keeper.Recall(k, address, others, yield)
	}
}

// serveLater begins to serve the topics from the store that have waited long enough. The caller holds mu.
func (f *Feed) serveLater(now time.Time) {
	if f.keeper == nil {
		return
	}
	if at := f.keeper.Next(); !at.IsZero() && !at.After(now) && !f.serving.Swap(true) {
		f.reading.Go(f.serve)
	}
}

// serve serves the topics that are due.
func (f *Feed) serve() {
	f.Store.Flush(flushMost)
	for {
		f.mu.Lock()
		f.takeNotes(time.Now())
		due := f.keeper.Due(time.Now(), atOnce)
		if f.closed || len(due) == 0 {
			f.serving.Store(false)
			f.plan(time.Now())
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		found := f.lookAll(due)
		f.mu.Lock()
		if !f.closed {
			f.takeNotes(time.Now())
			f.restore(f.keeper.Serve(found))
		}
		f.mu.Unlock()
	}
}

// Wake makes the Feed check again which topics have waited long enough for a server's answer.
func (f *Feed) Wake() { f.wake() }

// Stale returns how many topics are served from the store.
func (f *Feed) Stale() int {
	if f.keeper == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keeper.Stale()
}
