package collections

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// How much is done at a time. What there is to do is for control planes to decide: how
// many entries a list has, and how many names lead to one. All of it is done by one
// goroutine, so it waits in lines, one for each set and one for the names of each
// authority, and these take turns: each gets on, whatever another comes to, and the relay
// can end. And what is read of the cache meanwhile keeps updates from it, so that is
// given back now and then. It never waits for the cache: what is to be read of a scope to
// which an update is being stored has its turn after that, and all else goes on (park.go).

const (
	// perRound is how many follows, members and entries are looked at before what has
	// come of it is written, and perTurn how many of one line.
	perRound = 4000
	perTurn  = 500
	// perHold is how many without letting updates be stored in the scopes that they read.
	// What is evaluated after that is of another moment.
	perHold = 1000
	// largeList is the size of a list collection that is not taken apart meanwhile.
	largeList = 64 << 10
)

// line is what waits for its turn.
type line struct {
	steps   []step
	follows []*follow
	waiting bool   // it is in Resolver.lines
	of      string // the authority, if it is one of entries
}

// turn is how much is left to be done in the round, and by the line whose turn it is.
type turn struct {
	round, line int
	spent       int // since the last release
}

// work does what there is to be done in a round.
func (r *Resolver) work(now time.Time, reach bool) {
	r.turn = turn{round: perRound}
	defer r.holds.Release()
	r.look(now, reach)
	for r.turn.round > 0 && len(r.lines) > 0 {
		l := r.lines[0]
		r.lines[0] = nil
		r.lines = r.lines[1:]
		r.turn.line = perTurn
		r.advance(l, now)
		if len(l.steps)+len(l.follows) > 0 {
			r.lines = append(r.lines, l)
			continue
		}
		l.waiting = false
		l.steps, l.follows = nil, nil
		if r.entryLines[l.of] == l {
			r.entryLines = cache.Without(r.entryLines, &r.rooms.entryLines, l.of)
		}
	}
}

// advance takes from a line as much as there is room for.
func (r *Resolver) advance(l *line, now time.Time) {
	for r.left() > 0 {
		switch {
		case len(l.steps) > 0:
			s := l.steps[0]
			l.steps[0] = nil
			l.steps = l.steps[1:]
			if r.readable(s) {
				r.takeStep(s, now)
			} else {
				r.parked.steps = append(r.parked.steps, s)
			}
		case len(l.follows) > 0:
			f := l.follows[0]
			l.follows[0] = nil
			l.follows = l.follows[1:]
			_, dirty := r.follows[f]
			if dirty && !f.readable() {
				r.parked.follows = append(r.parked.follows, f)
				break
			}
			f.waits = false
			if dirty {
				r.clean(f)
				f.evaluate(now)
			}
		default:
			return
		}
		r.spend()
	}
}

// wait has a line have its turn.
func (r *Resolver) wait(l *line) {
	if !l.waiting {
		l.waiting = true
		r.lines = append(r.lines, l)
	}
}

// lineOf is that of a follow.
func (r *Resolver) lineOf(f *follow) *line {
	if f.of != nil {
		return &f.of.line
	}
	authority := f.start.url.Key().Authority
	if f.start.leaf != nil {
		authority = f.start.leaf.Scope.Authority
	}
	l := r.entryLines[authority]
	if l == nil {
		l = &line{of: authority}
		r.entryLines[authority] = l
	}
	return l
}

// dirty has a follow evaluated when it is its turn.
func (r *Resolver) dirty(f *follow) {
	if _, there := r.follows[f]; there {
		return
	}
	r.follows[f] = struct{}{}
	if f.of != nil {
		f.of.todos++
	}
	if !f.waits {
		f.waits = true
		l := r.lineOf(f)
		l.follows = append(l.follows, f)
		r.wait(l)
	}
}

// clean is for when that is done, or not needed any more.
func (r *Resolver) clean(f *follow) {
	if _, there := r.follows[f]; !there {
		return
	}
	r.follows = cache.Without(r.follows, &r.rooms.follows, f)
	if f.of != nil {
		f.of.done()
	}
}

// todo has a step taken when it is its turn. Until it was, nothing that goes is told by the
// node that it belongs to: it may be somewhere else by then.
func (r *Resolver) todo(s step) {
	due, waits := r.sets.steps[s]
	if due {
		return
	}
	r.sets.steps[s] = true
	of := s.common()
	of.todos++
	if !waits {
		of.line.steps = append(of.line.steps, s)
		r.wait(&of.line)
	}
}

// untodo is for when a step is not needed any more.
func (r *Resolver) untodo(s step) {
	if r.sets.steps[s] {
		r.sets.steps[s] = false // it still waits
		s.common().done()
	}
}

func (r *Resolver) takeStep(s step, now time.Time) {
	due := r.sets.steps[s]
	delete(r.sets.steps, s)
	if !due {
		return
	}
	s.common().done()
	s.step(now)
	if _, standing := r.sets.standing[s]; !standing {
		return
	}
	if at := s.due(); at.IsZero() {
		r.sets.times.End(s)
	} else {
		r.sets.times.Set(s, at)
	}
}

// left is for how much there is room.
func (r *Resolver) left() int { return min(r.turn.line, r.turn.round) }

// spend notes that one was looked at.
func (r *Resolver) spend() {
	r.turn.round, r.turn.line = max(0, r.turn.round-1), max(0, r.turn.line-1)
	if r.turn.spent++; r.turn.spent < perHold {
		return
	}
	r.holds.Release()
	r.turn.spent = 0
	select {
	case <-r.stop:
		r.turn.round = 0
	default:
	}
}

// aside does something of that size that needs no topics to be held.
func (r *Resolver) aside(size int, do func()) {
	if size >= largeList {
		r.holds.Release()
		r.turn.spent = 0
	}
	do()
}
