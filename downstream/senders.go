package downstream

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// senders send to the streams that have something to be sent: as many at once as there
// are processors, each stream one response at a time and in turn. With a goroutine for
// each stream, the one that reads from the control plane would be one of thousands to
// the scheduler, and what it reads would be old before anybody saw it. So news goes
// first; and a stream whose turn comes late is sent the newest state, which has
// everything in it that changed meanwhile: under load a client costs fewer responses.
type senders struct {
	limit int

	mu    sync.Mutex
	queue []*stream // those that wait are from first on
	first int
	// active counts the senders that are neither idle nor held up by their client.
	active int
}

// lendAfter is how long a client may hold up a sender, by not reading, until another
// takes its place.
const lendAfter = time.Millisecond

// slowFor is how often a client that held up a sender has to have been sent all that there
// was until a sender takes it again; maxSlowness is the most that it can come to.
const slowFor, maxSlowness = 8, 255

func newSenders() *senders { return &senders{limit: runtime.GOMAXPROCS(0)} }

// add has a stream sent to. It is in the queue at most once: whoever adds it has made
// its inbox awake.
func (q *senders) add(st *stream) {
	if st.slowness > 0 {
		go q.alone(st)
		return
	}
	q.mu.Lock()
	q.queue = append(q.queue, st)
	start := q.start()
	q.mu.Unlock()
	if start {
		go q.send()
	}
}

// start says whether another sender is to begin, and counts it. The caller holds mu.
func (q *senders) start() bool {
	if q.active >= q.limit || q.first == len(q.queue) {
		return false
	}
	q.active++
	return true
}

// next returns the stream whose turn it is. Without one, nil, the sender ends.
func (q *senders) next() *stream {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.first == len(q.queue) {
		q.queue, q.first = q.queue[:0], 0
		q.active--
		return nil
	}
	st := q.queue[q.first]
	q.queue[q.first] = nil
	q.first++
	if q.first > len(q.queue)/2 && q.first > 1024 {
		n := copy(q.queue, q.queue[q.first:])
		clear(q.queue[n:])
		q.queue, q.first = q.queue[:n], 0
	}
	return st
}

// sender is one of the senders.
type sender struct {
	state atomic.Int32
	timer *time.Timer // calls lend
}

const (
	senderComposes int32 = iota
	senderSends
	senderLent // another has taken its place
)

// send sends to one stream after another, until there is none.
func (q *senders) send() {
	s := &sender{}
	for st := q.next(); st != nil; st = q.next() {
		if !st.mu.TryLock() {
			// A request with very many names can take long, and the end of its stream.
			go q.alone(st)
			continue
		}
		r := st.nextLocked()
		if r == nil {
			if !st.inbox.sleep() {
				q.add(st)
			}
			continue
		}
		s.begin(q)
		err := st.transmit(r)
		lent := !s.end()
		if lent {
			st.slowness = min(2*st.slowness+slowFor, maxSlowness)
		}
		if err == nil {
			q.add(st)
		}
		if lent {
			return
		}
		// First those that were waiting: who reads from the control plane, and gRPC's
		// writers, which have what was sent.
		runtime.Gosched()
	}
}

// begin notes that the sender may be held up from now on.
func (s *sender) begin(q *senders) {
	s.state.Store(senderSends)
	if s.timer == nil {
		s.timer = time.AfterFunc(lendAfter, func() { q.lend(s) })
	} else {
		s.timer.Reset(lendAfter)
	}
}

// end notes that the sender is not held up any more, and says whether it still has its
// place.
func (s *sender) end() bool {
	s.timer.Stop()
	return s.state.CompareAndSwap(senderSends, senderComposes)
}

// lend gives the place of a sender to another.
func (q *senders) lend(s *sender) {
	if !s.state.CompareAndSwap(senderSends, senderLent) {
		return
	}
	q.mu.Lock()
	q.active--
	start := q.start()
	q.mu.Unlock()
	if start {
		q.send()
	}
}

// alone sends to a stream whose client is slow, or that has a request to take first, until
// there is nothing more. It holds up nobody else.
func (q *senders) alone(st *stream) {
	for {
		r := st.next()
		if r == nil {
			st.slowness = max(0, st.slowness-1)
			if !st.inbox.sleep() {
				q.add(st)
			}
			return
		}
		if st.transmit(r) != nil {
			return
		}
	}
}
