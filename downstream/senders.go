package downstream

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// senders send to the streams that have something to be sent: as many at once as there
// are processors, each stream one response at a time and in turn. With a goroutine for
// each stream, the one that reads from the control plane would be one of thousands to
// the scheduler, and what it reads would be old before anybody saw it. So news goes
// first; and a stream whose turn comes late is sent the newest state, which has
// everything in it that changed meanwhile: under load a client costs fewer responses.
type senders struct {
	limit int

	mu sync.Mutex
	// parked are those whose turn had come while an update was stored: they go first.
	parked, queue streamQueue
	// working are the senders that are not held up, and idle those that have ended: a herd that comes one by one
	// would have a new one for each client.
	working, idle []*sender
	// composing counts the senders that were held up by a response before it was sent, and still are.
	composing int

	// timer calls watch as long as there are working senders; ticks says whether it runs. It is never stopped, and
	// set only when it has fired: Go looks through all timers of a processor when one that is set, or was stopped, is
	// set to another time, and each connection of gRPC has three.
	timer *time.Timer
	ticks bool
}

// streamQueue is first in, first out.
type streamQueue struct {
	streams []*stream // those that wait are from first on
	first   int
}

// lendAfter is how long a client may hold up a sender, until another takes its place: up to
// twice as long. A client does so by not reading, and by what there is to be done for it,
// as to find out what is new in a very large set.
const lendAfter = time.Millisecond

// slowFor is how often a client that held up a sender has to have been sent all that there
// was until a sender takes it again; maxSlowness is the most that it can come to.
const slowFor, maxSlowness = 8, 255

// add has a stream sent to. It is in the queue at most once: whoever adds it has made
// its inbox awake.
func (q *senders) add(st *stream) {
	if s := q.enqueue(st); s != nil {
		go s.send()
	}
}

// enqueue is add, but if another sender is to begin, it returns that and the caller calls send.
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

// start returns the sender that is to begin, if another one is. The caller holds mu.
func (q *senders) start() (s *sender) {
	if len(q.working) >= q.limit || q.queue.empty() && q.parked.empty() {
		return nil
	}
	if last := len(q.idle) - 1; last >= 0 {
		s, q.idle = q.idle[last], q.idle[:last]
	} else {
		s = &sender{of: q, at: phases} // the number 0 is none
	}
	q.working = append(q.working, s)
	q.tick()
	return s
}

// next returns the stream whose turn it is. Without one, nil, the sender ends.
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

// next takes the first one out, nil if there is none.
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
	// state is a phase, and the number of the stream that it is at times phases. The
	// numbers go on when the sender begins again.
	state atomic.Uint64
	at    uint64 // that number times phases
	seen  uint64 // the number as of when watch looked last; guarded by senders.mu
}

// A sender's phases.
const (
	senderRests    uint64 = iota
	senderComposes        // the next response of its stream
	senderSends
	senderLent // another has taken its place
	phases
)

// send sends to one stream after another, until there is none.
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
		} else if keeps && !st.inbox.sleep() {
			q.add(st)
		}
		if lent {
			return
		}
		s.state.Store(at + senderRests)
		if r != nil {
			// First those that were waiting: who reads from the control plane, and
			// gRPC's writers, which have what was sent.
			runtime.Gosched()
		}
	}
}

// compose returns what is to be sent to a stream next. It waits for nothing; keeps says
// whether the stream is not left to others for that.
func (q *senders) compose(st *stream) (r *session.Response, keeps bool) {
	for _, how := range [...]holding{holdNow, holdOrPark} {
		if !st.mu.TryLock() {
			// A request with very many names can take long, and the end of its stream.
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

// tick sees that watch is called. The caller holds mu.
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

// watch gives the place of each sender that has been at one stream for so long to another.
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

// lend says whether a sender has no place any more: it is at the stream at which it was before, and is marked as one
// that is held up. Of those that compose there may be as many as have a place: each is at work. The caller holds mu.
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

// composed notes that a sender that was lent composes no more.
func (q *senders) composed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.composing--
}

// alone sends to a stream whose client is slow, or that has a request to take first, until
// there is nothing more. It holds up nobody else.
func (q *senders) alone(st *stream) {
	for {
		st.mu.Lock()
		if st.awaitAnswer() {
			st.mu.Unlock()
			return
		}
		r, _ := st.compose(holdAndWait)
		if r == nil {
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

// Wake implements cache.Waker: it has the stream sent to. Whoever calls it has made
// the inbox awake.
func (st *stream) Wake() { st.server.senders.add(st) }

func newSenders() *senders { return &senders{limit: runtime.GOMAXPROCS(0)} }
