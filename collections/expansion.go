package collections

import (
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// The transition from one version of a list collection to the next. Entries in both keep
// their sources. A list may be long, so the transition takes turns with other work.

// expansion is a transition in progress. It may take several rounds.
type expansion struct {
	nextEntry   int               // index of the next entry
	unmatched   map[string]*input // inputs of the previous list, so far not found in the new one
	lastGood    map[string]string
	previous    *list                    // the previous list
	ranks       []ranked                 // final ranks of inputs
	copies      map[string]int           // number of equal inline entries, if several
	namedInside map[string]*memberLookup // see lookupsNamedInside, nil until needed
}

type ranked struct {
	part *input
	rank int
}

// step implements step: it continues an expansion.
func (l *listSource) step(time.Time) {
	if l.expansion == nil {
		l.queued = false
		l.beginExpansion()
	} else {
		l.continueExpansion()
	}
	l.updateState()
}

func (l *listSource) due() time.Time { return time.Time{} }

// expand makes another list the content, after an expansion in progress.
func (l *listSource) expand(next *list) {
	l.next = next
	if l.expansion == nil && !l.queued {
		l.beginExpansion()
		return
	}
	l.queued = true
}

func (l *listSource) beginExpansion() {
	next := l.next
	if next == nil {
		next = &list{}
	}
	l.expansion = &expansion{unmatched: l.byID, lastGood: l.lastGood, previous: l.current}
	l.byID, l.lastGood, l.current = make(map[string]*input, len(next.entries)), nil, next
	l.continueExpansion()
}

// continueExpansion adds entries as far as the budget allows. New entries rank after those
// of the previous list until the expansion is complete, so nothing replaces anything for a
// moment only.
func (l *listSource) continueExpansion() {
	x := l.expansion
	for ; x.nextEntry < len(l.current.entries); x.nextEntry++ {
		if l.remaining() == 0 {
			l.schedule(l)
			return
		}
		l.spend()
		l.addEntry(x, x.nextEntry)
	}
	l.completeExpansion(x)
	l.expansion = nil
	if l.queued {
		l.schedule(l)
	}
}

// arriving is the rank of new entries during an expansion.
const arriving = leaving - 1

// addEntry makes an entry an input.
func (l *listSource) addEntry(x *expansion, i int) {
	e := l.entry(l.current, i)
	if e.err != nil {
		l.badEntry(e.err)
		l.keepLastGood(x, i)
		return
	}
	if l.byID[e.id] != nil {
		if e.resource == nil {
			return // the same locator twice is one member
		}
		if x.copies == nil {
			x.copies = map[string]int{}
		}
		x.copies[e.id]++
		e.id = fmt.Sprintf("%s (%d)", e.id, x.copies[e.id]+1)
	}
	p := x.unmatched[e.id]
	if p != nil {
		delete(x.unmatched, e.id)
		l.place(x, e.id, p, i)
		if given, ok := p.source.(*fixedSource); ok {
			given.set(e.resource)
		}
		return
	}
	if l.entries >= l.sets.maxEntries {
		l.badEntry(&cache.Error{Code: codes.ResourceExhausted, Message: fmt.Sprintf("entry %d of the list collection: the collections of one set have more than %d entries together", i, l.sets.maxEntries)})
		return
	}
	l.entries++
	p = l.union.add(e.label, arriving, e.open)
	l.place(x, e.id, p, i)
	m, ok := p.source.(*locatorSource)
	switch {
	case !ok:
	case m.namedInside:
		if x.namedInside == nil {
			x.namedInside = lookupsNamedInside(l.union.inputs)
		}
		if was := x.namedInside[m.entry()]; was != nil {
			m.takePlaceOf(was.key, was.spelled, was.home)
		}
	default:
		was := x.unmatched[l.idBefore(x, l.current.entries[i].name)]
		if was == nil {
			break
		}
		switch was := was.source.(type) {
		case *fixedSource:
			if was.resource != nil {
				m.takePlaceOf(was.key, was.resource.Name(), "")
			}
		case *locatorSource: // it may have the name of what it replaced
			m.takePlaceOf(was.key, was.spelled, was.home)
		}
	}
}

// place records the input of an entry.
func (l *listSource) place(x *expansion, id string, p *input, rank int) {
	l.byID[id] = p
	x.ranks = append(x.ranks, ranked{p, rank})
}

// completeExpansion ends an expansion. Entries that are not in the new list are removed
// when the new ones are known.
func (l *listSource) completeExpansion(x *expansion) {
	for _, r := range x.ranks {
		r.part.rank = r.rank
	}
	if l.current.err != nil { // the entries after that are unknown
		maps.Copy(l.byID, x.unmatched)
		clear(x.unmatched)
	}
	for _, p := range x.unmatched {
		l.spend()
		if !p.known {
			l.remove(p)
			continue
		}
		p.rank = leaving + p.rank
		if l.leaving == nil {
			l.leaving = map[*input]struct{}{}
		}
		l.leaving[p] = struct{}{}
	}
	l.union.decideAgain(false)
}

// removeLeaving removes the entries that are not in the list any more.
func (l *listSource) removeLeaving() {
	for p := range l.leaving {
		l.spend()
		l.remove(p)
	}
	l.leaving = nil
}

func (l *listSource) remove(p *input) {
	l.entries--
	l.union.remove(p)
}

// lookupsNamedInside returns the known lookups among these inputs that take their name from the
// resource inside, by the name of the entry.
func lookupsNamedInside(parts []*input) map[string]*memberLookup {
	all := map[string]*memberLookup{}
	for _, p := range parts {
		if m, ok := p.source.(*locatorSource); ok && m.namedInside && m.known {
			all[m.entry()] = &m.memberLookup
		}
	}
	return all
}

// idBefore returns the id that the inline entry of that name had in the previous list, empty
// if there was none.
func (l *listSource) idBefore(x *expansion, name string) (id string) {
	id, ok := x.lastGood[name]
	if !ok && name != "" && x.previous != nil {
		if was := x.previous.entry(name); was != nil && was.err == nil {
			id = l.inlineEntry(x.previous, x.previous.named[name]).id
		}
	}
	return id
}

// keepLastGood makes a bad entry with a name keep its last good content.
func (l *listSource) keepLastGood(x *expansion, i int) {
	name := l.current.entries[i].name
	id := l.idBefore(x, name)
	p := x.unmatched[id]
	if p == nil {
		return
	}
	delete(x.unmatched, id)
	l.place(x, id, p, i)
	if l.lastGood == nil {
		l.lastGood = map[string]string{}
	}
	l.lastGood[name] = id
}
