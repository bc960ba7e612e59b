package collections

import (
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// From one state of a list collection to the next: what is in both stays what it is. A
// list may be long, so that takes turns with what else there is to do.

// expansion is the making of a list's members, which may take several rounds.
type expansion struct {
	at     int              // the entry that is next
	before map[string]*part // those of the list before that have not been met yet
	stayed map[string]string
	last   *list                // the one before
	ranks  []ranked             // those that were met
	copies map[string]int       // how many there are of an inline entry, if several
	called map[string]*followed // see entriesOf, nil until needed
}

type ranked struct {
	part *part
	rank int
}

// step implements step: it goes on with an expansion.
func (l *listSource) step(time.Time) {
	if l.expansion == nil {
		l.queued = false
		l.begin()
	} else {
		l.advance()
	}
	l.settle()
}

func (l *listSource) due() time.Time { return time.Time{} }

// expand makes the members those of another list, when those of the one before have been
// made.
func (l *listSource) expand(next *list) {
	l.aim = next
	if l.expansion == nil && !l.queued {
		l.begin()
		return
	}
	l.queued = true
}

func (l *listSource) begin() {
	next := l.aim
	if next == nil {
		next = &list{}
	}
	l.expansion = &expansion{before: l.byID, stayed: l.stays, last: l.list}
	l.byID, l.stays, l.list = make(map[string]*part, len(next.entries)), nil, next
	l.advance()
}

// advance goes on with the expansion, as far as there is room for it in the round. What is
// new counts after what was there, until all is known to be where it is: nothing takes the
// place of anything for a moment only.
func (l *listSource) advance() {
	x := l.expansion
	for ; x.at < len(l.list.entries); x.at++ {
		if l.left() == 0 {
			l.todo(l)
			return
		}
		l.spend()
		l.meet(x, x.at)
	}
	l.complete(x)
	l.expansion = nil
	if l.queued {
		l.todo(l)
	}
}

// arriving is the rank of what is new in a list that is being expanded.
const arriving = leaving - 1

// meet makes an entry a member.
func (l *listSource) meet(x *expansion, i int) {
	e := l.entry(l.list, i)
	if e.err != nil {
		l.bad(e.err)
		l.stay(x, i)
		return
	}
	if l.byID[e.id] != nil {
		if e.given == nil {
			return // the same twice is the same
		}
		if x.copies == nil {
			x.copies = map[string]int{}
		}
		x.copies[e.id]++
		e.id = fmt.Sprintf("%s (%d)", e.id, x.copies[e.id]+1)
	}
	p := x.before[e.id]
	if p != nil {
		delete(x.before, e.id)
		l.put(x, e.id, p, i)
		if given, ok := p.source.(*givenSource); ok {
			given.give(e.given)
		}
		return
	}
	if l.entries >= l.sets.maxEntries {
		l.bad(&cache.Error{Code: codes.ResourceExhausted, Message: fmt.Sprintf("entry %d of the list collection: the collections of one set have more than %d entries together", i, l.sets.maxEntries)})
		return
	}
	l.entries++
	p = l.union.add(e.label, arriving, e.open)
	l.put(x, e.id, p, i)
	m, ok := p.source.(*locatedSource)
	switch {
	case !ok:
	case m.byInner:
		if x.called == nil {
			x.called = entriesOf(l.union.parts)
		}
		if was := x.called[m.entry()]; was != nil {
			m.follows(was.key, was.spelled, was.home)
		}
	default:
		was := x.before[l.before(x, l.list.entries[i].name)]
		if was == nil {
			break
		}
		switch was := was.source.(type) {
		case *givenSource:
			if was.resource != nil {
				m.follows(was.key, was.resource.Name(), "")
			}
		case *locatedSource: // which may be called as what it took the place of
			m.follows(was.key, was.spelled, was.home)
		}
	}
}

// put notes which part an entry is.
func (l *listSource) put(x *expansion, id string, p *part, rank int) {
	l.byID[id] = p
	x.ranks = append(x.ranks, ranked{p, rank})
}

// complete ends an expansion. What is no more in the list goes when what is new is known.
func (l *listSource) complete(x *expansion) {
	for _, r := range x.ranks {
		r.part.rank = r.rank
	}
	if l.list.err != nil { // what comes after is not known
		maps.Copy(l.byID, x.before)
		clear(x.before)
	}
	for _, p := range x.before {
		l.spend()
		if !p.known {
			l.drop(p)
			continue
		}
		p.rank = leaving + p.rank
		if l.going == nil {
			l.going = map[*part]struct{}{}
		}
		l.going[p] = struct{}{}
	}
	l.union.reelect(false)
}

// leave ends those that are no more in the list.
func (l *listSource) leave() {
	for p := range l.going {
		l.spend()
		l.drop(p)
	}
	l.going = nil
}

func (l *listSource) drop(p *part) {
	l.entries--
	l.union.remove(p)
}

// entriesOf are the members among these parts that are called by the name inside them.
func entriesOf(parts []*part) map[string]*followed {
	all := map[string]*followed{}
	for _, p := range parts {
		if m, ok := p.source.(*locatedSource); ok && m.byInner && m.known {
			all[m.entry()] = &m.followed
		}
	}
	return all
}

// before is the id of the inline entry of that name in the list before, empty if there
// was none.
func (l *listSource) before(x *expansion, name string) (id string) {
	id, ok := x.stayed[name]
	if !ok && name != "" && x.last != nil {
		if was := x.last.entry(name); was != nil && was.err == nil {
			id = l.inline(x.last, x.last.named[name]).id
		}
	}
	return id
}

// stay has a bad entry be what it was before, as far as its name says what that is.
func (l *listSource) stay(x *expansion, i int) {
	name := l.list.entries[i].name
	id := l.before(x, name)
	p := x.before[id]
	if p == nil {
		return
	}
	delete(x.before, id)
	l.put(x, id, p, i)
	if l.stays == nil {
		l.stays = map[string]string{}
	}
	l.stays[name] = id
}
