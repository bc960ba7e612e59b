package downstream

import (
	"runtime"
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
	// active counts the senders that are neither idle nor held up, and composing those that
	// were held up by a response before it was sent, and still are.
	active, composing int

	// ended are senders that have ended, with their timers. A herd that comes one by one
	// would have a new one for each client.
	ended sync.Pool
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
	if st.slowness > 0 {
		go q.alone(st)
		return
	}
	q.mu.Lock()
	q.queue.add(st)
	start := q.start()
	q.mu.Unlock()
	if start {
		go q.send()
	}
}

// Wake implements cache.Waker.
func (st *parkedStream) Wake() {
	q := st.server.senders
	q.mu.Lock()
	q.parked.add((*stream)(st))
	start := q.start()
	q.mu.Unlock()
	if start {
		go q.send()
	}
}

// start says whether another sender is to begin, and counts it. The caller holds mu.
func (q *senders) start() bool {
	if q.active >= q.limit || q.queue.empty() && q.parked.empty() {
		return false
	}
	q.active++
	return true
}

// next returns the stream whose turn it is. Without one, nil, the sender ends.
func (q *senders) next() *stream {
	q.mu.Lock()
	defer q.mu.Unlock()
	if st := q.parked.next(); st != nil {
		return st
	}
	st := q.queue.next()
	if st == nil {
		q.active--
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
	// state is a phase, and the number of the stream that it is at times phases. The
	// numbers go on when the sender begins again.
	state atomic.Uint64
	at    uint64        // that number times phases
	timer *time.Timer   // calls watch
	seen  atomic.Uint64 // the number as of when that was called last
}

// A sender's phases.
const (
	senderRests    uint64 = iota
	senderComposes        // the next response of its stream
	senderSends
	senderLent // another has taken its place
	phases
)

const senderEnded = ^uint64(0)

// send sends to one stream after another, until there is none.
func (q *senders) send() {
	s := q.begin()
	defer q.end(s)
	for ; ; s.at += phases {
		at := s.at
		st := q.next()
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
				lent, st.slowness = true, min(2*st.slowness+slowFor, maxSlowness)
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

// begin returns a sender whose timer runs.
func (q *senders) begin() *sender {
	if s, ok := q.ended.Get().(*sender); ok {
		s.state.Store(s.at + senderRests)
		s.timer.Reset(lendAfter)
		return s
	}
	s := &sender{}
	s.timer = time.AfterFunc(time.Hour, func() { q.watch(s) })
	s.timer.Reset(lendAfter)
	return s
}

// end ends a sender. It can begin again unless its timer is being served, or has lent its place.
func (q *senders) end(s *sender) {
	s.state.Store(senderEnded)
	if s.timer.Stop() {
		s.at += phases
		q.ended.Put(s)
	}
}

// watch gives the place of a sender to another, if it has been at one stream for so long.
func (q *senders) watch(s *sender) {
	now := s.state.Load()
	if now == senderEnded {
		return
	}
	is := now / phases
	was := s.seen.Swap(is)
	if now%phases == senderRests || is != was || !q.lend(s, now) {
		s.timer.Reset(lendAfter)
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

// lend marks a sender as one that has no place any more, unless its state is another by now.
// Of those that compose there may be as many as have a place: each is at work.
func (q *senders) lend(s *sender, now uint64) bool {
	lent := now - now%phases + senderLent
	if now%phases == senderSends {
		return s.state.CompareAndSwap(now, lent)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.composing >= q.limit || !s.state.CompareAndSwap(now, lent) {
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

// Wake implements cache.Waker: it has the stream sent to. Whoever calls it has made
// the inbox awake.
func (st *stream) Wake() { st.server.senders.add(st) }
