package downstream

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// senders send responses to the streams that have something to send. There are as many senders as processors. The
// streams take turns, and each gets one response in its turn.
//
// If each stream had a goroutine for this, the goroutine that reads from the control plane would be one of thousands
// for Go's scheduler, and its updates would be old before the first client got them. With few senders the relay reads
// first. A stream whose turn comes late gets the newest state, which includes all changes since its last turn. So under
// load a client costs fewer responses.
type senders struct {
	limit int

	mu sync.Mutex
	// parked has the streams whose turn came while an update was being stored. They go first.
	parked, queue streamQueue
	// working has the senders that have a place, and idle those that have ended, to be used again. Otherwise a herd
	// whose clients connect one by one would need a new sender for each client.
	working, idle []*sender
	// composing counts the senders that have lent their place and still compose a response.
	composing int

	// timer calls watch while there are working senders; ticks reports whether it runs. It is never stopped, and is
	// set only after it has fired: when a timer that is set or was stopped gets another time, Go looks through all
	// timers of the processor, and each gRPC connection has three.
	timer *time.Timer
	ticks bool
}

// streamQueue is a queue: first in, first out.
type streamQueue struct {
	streams []*stream // streams[first:] wait
	first   int
}

// lendAfter is how long a client may hold up a sender before another sender takes its place; it can be twice as long. A
// client holds up a sender if it does not read, or if its response takes long to compose, such as the changes in a very
// large set.
const lendAfter = time.Millisecond

// slowFor is how often a client that held up a sender must have received everything before a sender serves it again. Each
// further time it holds up a sender doubles that, up to maxSlowness.
const slowFor, maxSlowness = 8, 255

// add puts a stream in the queue. A stream is in the queue at most once, because the caller has just woken its inbox.
func (q *senders) add(st *stream) {
	if s := q.enqueue(st); s != nil {
		go s.send()
	}
}

// enqueue is like add, but if another sender has to start, enqueue returns it, and the caller calls its send.
func (q *senders) enqueue(st *stream) *sender {
	if st.slowness > 0 {
		go q.alone(st)
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue.add(st)
	return q.start()
}

// Wake implements cache.Waker.
func (st *parkedStream) Wake() {
	q := st.server.senders
	q.mu.Lock()
	q.parked.add((*stream)(st))
	s := q.start()
	q.mu.Unlock()
	if s != nil {
		go s.send()
	}
}

// start returns a sender for the caller to run, or nil if no other one is needed. The caller holds mu.
func (q *senders) start() (s *sender) {
	if len(q.working) >= q.limit || q.queue.empty() && q.parked.empty() {
		return nil
	}
	if last := len(q.idle) - 1; last >= 0 {
		s, q.idle = q.idle[last], q.idle[:last]
	} else {
		s = &sender{of: q, at: phases} // number 0 means no stream
	}
	q.working = append(q.working, s)
	q.tick()
	return s
}

// next returns the stream whose turn it is. If there is none, next returns nil and the sender ends.
func (q *senders) next(s *sender) *stream {
	q.mu.Lock()
	defer q.mu.Unlock()
	if st := q.parked.next(); st != nil {
		return st
	}
	st := q.queue.next()
	if st == nil {
		q.working = slices.DeleteFunc(q.working, func(w *sender) bool { return w == s })
		q.idle = append(q.idle, s)
	}
	return st
}

func (q *streamQueue) empty() bool { return q.first == len(q.streams) }

func (q *streamQueue) add(st *stream) { q.streams = append(q.streams, st) }

// next removes the first stream and returns it, or nil if there is none.
func (q *streamQueue) next() *stream {
	if q.empty() {
		q.streams, q.first = q.streams[:0], 0
		return nil
	}
	st := q.streams[q.first]
	q.streams[q.first] = nil
	q.first++
	if q.first > len(q.streams)/2 && q.first > 1024 {
		n := copy(q.streams, q.streams[q.first:])
		clear(q.streams[n:])
		q.streams, q.first = q.streams[:n], 0
	}
	return st
}

// sender is one of the senders.
type sender struct {
	of *senders
	// state is n*phases plus a phase, where n is the number of the sender's turn. The numbers continue when an idle
	// sender starts again.
	state atomic.Uint64
	at    uint64 // n*phases
	seen  uint64 // n when watch looked last; guarded by senders.mu
}

// A sender's phases.
const (
	senderRests    uint64 = iota
	senderComposes        // composes the next response of its stream
	senderSends
	senderLent // another sender has taken its place
	phases
)

// send serves one stream after another until none is left.
func (s *sender) send() {
	q := s.of
	for ; ; s.at += phases {
		at := s.at
		st := q.next(s)
		if st == nil {
			return
		}
		s.state.Store(at + senderComposes)
		r, keeps := q.compose(st)
		lent := !s.state.CompareAndSwap(at+senderComposes, at+senderSends)
		if lent {
			q.composed()
		}
		if r != nil {
			err := st.transmit(r)
			if !lent && !s.state.CompareAndSwap(at+senderSends, at+senderRests) {
				lent, st.slowness = true, uint8(min(2*int(st.slowness)+slowFor, maxSlowness))
			}
			if err == nil {
				q.add(st)
			}
		} else if keeps {
			st.attended()
			if !st.inbox.sleep() {
				q.add(st)
			}
		}
		if lent {
			return
		}
		s.state.Store(at + senderRests)
		if r != nil {
			// Goroutines that wait go first: those that read from control planes, and gRPC's writers, which have this
			// response.
			runtime.Gosched()
		}
	}
}

// compose returns the next response for a stream, nil if there is none now. It never waits. keeps is false if another
// goroutine has taken over the stream because compose would have had to wait.
func (q *senders) compose(st *stream) (r *session.Response, keeps bool) {
	for _, how := range [...]holding{holdNow, holdOrPark} {
		if !st.mu.TryLock() {
			// A request with very many names holds the lock for long, and so does the end of its stream.
			go q.alone(st)
			return nil, false
		}
		if st.awaitAnswer() {
			st.mu.Unlock()
			return nil, false
		}
		r, failed := st.compose(how)
		if !failed {
			return r, true
		}
		if how == holdNow {
			runtime.Gosched() // most updates are short
		}
	}
	return nil, false
}

// tick makes sure that the timer runs. The caller holds mu.
func (q *senders) tick() {
	switch {
	case q.ticks:
		return
	case q.timer == nil:
		q.timer = time.AfterFunc(lendAfter, q.watch)
	default:
		q.timer.Reset(lendAfter)
	}
	q.ticks = true
}

// watch replaces each sender that one stream has held up for too long.
func (q *senders) watch() {
	var others []*sender
	q.mu.Lock()
	q.working = slices.DeleteFunc(q.working, q.lend)
	for s := q.start(); s != nil; s = q.start() {
		others = append(others, s)
	}
	if q.ticks = false; len(q.working) > 0 {
		q.tick()
	}
	q.mu.Unlock()
	for _, s := range others {
		go s.send()
	}
}

// lend reports whether a sender loses its place, because it still serves the stream that it served at the last tick, and
// marks the sender as lent. At most limit senders compose without a place, because composing needs a processor. The caller
// holds mu.
func (q *senders) lend(s *sender) bool {
	now := s.state.Load()
	is, was := now/phases, s.seen
	s.seen = is
	lent := now - now%phases + senderLent
	switch {
	case is != was || now%phases == senderRests:
		return false
	case now%phases == senderSends:
		return s.state.CompareAndSwap(now, lent)
	case q.composing >= q.limit || !s.state.CompareAndSwap(now, lent):
		return false
	}
	q.composing++
	return true
}

// composed records that a sender without a place has finished composing.
func (q *senders) composed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.composing--
}

// alone serves a single stream until there is nothing more to send. It is for slow clients, and for streams that are
// processing a request. It delays no other stream.
func (q *senders) alone(st *stream) {
	for {
		st.mu.Lock()
		if st.awaitAnswer() {
			st.mu.Unlock()
			return
		}
		r, _ := st.compose(holdAndWait)
		if r == nil {
			st.attended()
			st.slowness -= min(st.slowness, 1)
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

// Wake implements cache.Waker: it puts the stream in the senders' queue. The caller has just woken the stream's inbox.
func (st *stream) Wake() { st.server.senders.add(st) }

func newSenders() *senders { return &senders{limit: runtime.GOMAXPROCS(0)} }
