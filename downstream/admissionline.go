package downstream

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/xds-relay/xds-relay/internal/uptime"
)

// How fast a line moves. A stream that leaves the line has a place until its first answer is out, and there are so many
// places at a time: the window. So streams are admitted as fast as others get their first answers, and the relay's other
// work, such as updates for the clients that are there, waits for few of them.
//
// A place is for a stream that the relay has work with. A stream gives it back early if it has nothing to send, because
// it waits for a control plane; and loses it after placeTime, when it waits for its client, which sends no request or
// does not read. Such streams keep places without work. So the window grows while processors are idle, which shows in
// how long goroutines wait for one: see window.

// placeTime is the longest time that a stream has a place.
const placeTime = 50 * time.Millisecond

// place is that of a stream in line and, once it is admitted, that of a stream with work. The line's lock guards it.
type place struct {
	line     *line         // does not change
	conn     *member       // nil if it did not wait
	inLine   *list.Element // in conn.streams; nil if it is not in line
	admitted chan struct{} // is closed when the stream is admitted; nil if it did not wait
	works    bool
	since    time.Duration // when it was admitted, by uptime
	// The neighbours in line.oldest.
	before, after *place
}

// line is a line with its places.
type line struct {
	pace *rate.Limiter // nil without a rate

	mu     sync.Mutex
	turns  turns
	window window
	// oldest is the oldest place of a stream that was admitted, and newest the newest one.
	oldest, newest *place
	timer          *time.Timer // nil before the first stream in line
	ticks          bool        // the timer is set
}

// enter makes p, which is new, the place of a stream: one that is admitted if no one is in line and there is a place, and
// else one in line. It returns false if join, which gets how many streams are admitted until this one is, does.
func (l *line) enter(p *place, of func() party, join func(turns int) bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.line = l
	if l.turns.waiting() == 0 && l.free() {
		l.begin(l.turns.take(p))
		return true
	}
	conn := l.turns.of(of())
	if !join(conn.next()) {
		return false
	}
	l.turns.add(conn, p)
	l.tick()
	return true
}

// free reports whether a stream may have a place now, and counts it in the rate. The caller holds mu.
func (l *line) free() bool {
	if l.turns.working() >= l.window.places() {
		l.expire()
	}
	return l.turns.working() < l.window.places() && (l.pace == nil || l.pace.Allow())
}

// begin records that a stream has been admitted. The caller holds mu.
func (l *line) begin(p *place) {
	p.since, p.before = uptime.Duration(), l.newest
	if p.before != nil {
		p.before.after = p
	} else {
		l.oldest = p
	}
	l.newest = p
}

// end takes back the place of an admitted stream. The caller holds mu.
func (l *line) end(p *place) {
	l.turns.give(p)
	if p.before != nil {
		p.before.after = p.after
	} else {
		l.oldest = p.after
	}
	if p.after != nil {
		p.after.before = p.before
	} else {
		l.newest = p.before
	}
	p.before, p.after = nil, nil
}

// expire takes back the places that streams have had for too long. The caller holds mu.
func (l *line) expire() {
	for now := uptime.Duration(); l.oldest != nil && now-l.oldest.since >= placeTime; {
		l.end(l.oldest)
	}
}

// move admits as many streams in line as it may. The caller holds mu.
func (l *line) move() {
	for l.turns.waiting() > 0 && l.free() {
		p := l.turns.turn()
		l.begin(p)
		close(p.admitted)
	}
}

// admitEvery is the shortest time between two moves of a line with a rate.
const admitEvery = time.Millisecond

// tick has the line move again soon, if there are streams in it. The caller holds mu.
func (l *line) tick() {
	if l.ticks || l.turns.waiting() == 0 {
		return
	}
	in := windowTime
	if l.pace != nil {
		missing := max(0, 1-l.pace.Tokens())
		in = max(admitEvery, time.Duration(missing/float64(l.pace.Limit())*float64(time.Second)))
	}
	l.ticks = true
	if l.timer == nil {
		l.timer = time.AfterFunc(in, l.ticked)
	} else {
		l.timer.Reset(in)
	}
}

func (l *line) ticked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ticks = false
	l.window.adjust(uptime.Duration(), l.turns.working())
	l.move()
	if l.turns.waiting() == 0 {
		l.window = window{waits: l.window.waits}
	}
	l.tick()
}

// leave takes a stream out of the line. It reports whether the stream has been admitted and, if not, how many are until
// the next stream of its connection is.
func (p *place) leave() (admitted bool, turns int) {
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.inLine == nil {
		return true, 0
	}
	l.turns.remove(p)
	return false, p.conn.next()
}

// done gives the place of an admitted stream back: the relay has no more work with it. It may be called again.
func (p *place) done() {
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.works {
		l.end(p)
		l.move()
	}
}
