package collections

import (
	"github.com/xds-relay/xds-relay/cache"
)

// union is the members of several sources. Of two of one name the first source's
// counts; when that goes, the other takes its place without a gap. What a change costs
// does not depend on how many members there are.
type union struct {
	*setting
	up      sink
	parts   []*part
	members map[string]*candidates
	// several are the keys that more than one part offers.
	several map[string]struct{}
	clashes map[string]clash // that were told, by key
	open    int              // parts of which not everything is known
	lacking int              // parts of which something could not be had
	// filled is called when a part comes to have members, or has none any more. It
	// may be nil.
	filled func()
}

// part is a source's place in a union.
type part struct {
	union  *union
	label  string // what it is to people
	rank   int    // its place in the order; notCounted if it is not to be seen
	source source
	known  bool         // its condition is not Requested
	failed *cache.Error // if its condition is Failed
	lacks  bool         // and that may pass; or it is partial
	offers int          // members that can be had
	place  int          // in union.parts
}

const (
	notCounted = -1
	// leaving is the rank of the first of those that go as soon as the others are
	// known.
	leaving = 1 << 30
)

func newUnion(s *setting, up sink) *union {
	return &union{setting: s, up: up, members: map[string]*candidates{}, several: map[string]struct{}{}, clashes: map[string]clash{}}
}

// add adds a part, whose source open makes.
func (u *union) add(label string, rank int, open func(*part) source) *part {
	p := &part{union: u, label: label, rank: rank, place: len(u.parts)}
	u.parts = append(u.parts, p)
	u.open++
	p.source = open(p)
	p.turned()
	return p
}

// remove ends a part, at the cost of what it has offered.
func (u *union) remove(p *part) {
	var keys []string
	p.source.offered(func(key string) { keys = append(keys, key) })
	p.source.close()
	for _, key := range keys {
		p.withdraw(key)
	}
	last := len(u.parts) - 1
	u.parts[p.place] = u.parts[last]
	u.parts[p.place].place = p.place
	u.parts[last] = nil
	u.parts = u.parts[:last]
	if !p.known {
		u.open--
	}
	if p.lacks {
		u.lacking--
	}
}

// turned implements sink.
func (p *part) turned() {
	if p.source == nil {
		return // add will see to it
	}
	is := p.source.condition()
	if known := is.status != cache.Requested; known != p.known {
		p.known = known
		p.union.open++
		if known {
			p.union.open -= 2
		}
	}
	if is.err != nil && !sameError(is.err, p.failed) {
		p.union.sets.failures.Add(1)
		if log, ok := p.union.lines.collections.Next(p.union.log); ok {
			log.Warn("collection cannot be had", "collection", p.label, "error", is.err.Error())
		}
	}
	p.failed = is.err
	if lacks := is.err != nil && is.err.Open() || is.partial; lacks != p.lacks {
		p.lacks = lacks
		p.union.lacking--
		if lacks {
			p.union.lacking += 2
		}
	}
	p.union.up.turned()
}

// offer replaces what the part has under a key; again as in sink.
func (p *part) offer(key string, is offer, again bool) {
	u := p.union
	c := u.members[key]
	if c == nil {
		if is == (offer{}) {
			return
		}
		c = &candidates{}
		u.members[key] = c
	}
	was := p.offers
	if c.of(p).resource != nil {
		p.offers--
	}
	if is.resource != nil {
		p.offers++
	}
	if u.filled != nil && (was == 0) != (p.offers == 0) {
		u.filled()
	}
	c.put(p, is)
	if c.rivals != nil {
		u.several[key] = struct{}{}
	} else {
		delete(u.several, key)
	}
	u.elect(key, c, p, again)
}

func (p *part) withdraw(key string) { p.offer(key, offer{}, false) }

// elect decides which candidate counts, after a part has offered another.
func (u *union) elect(key string, c *candidates, by *part, again bool) {
	was, best := c.elected, c.best()
	c.elected = best.offer
	if _, told := u.clashes[key]; told || c.rivals != nil {
		u.sets.doubtful[doubt{u, key}] = struct{}{}
	}
	if c.empty() {
		delete(u.members, key)
	}
	if again = again && best.from == by; c.elected != was || again {
		u.up.elected(key, was, c.elected, again)
	}
}

// reelect decides anew after the ranks of parts have changed: of all keys if some
// counts that did not before, or the other way round.
func (u *union) reelect(all bool) {
	if all {
		for key, c := range u.members {
			c.reorder()
			u.elect(key, c, nil, false)
		}
		return
	}
	for key := range u.several {
		c := u.members[key]
		c.reorder()
		u.elect(key, c, nil, false)
	}
}

// condition is that of the parts together: what cannot be had of them does not keep the
// others from being known.
func (u *union) condition() condition {
	if u.open > 0 {
		return condition{status: cache.Requested}
	}
	var first *part // of those that cannot be had
	for _, p := range u.parts {
		if p.failed == nil {
			return condition{status: cache.Present, partial: u.lacking > 0}
		}
		if first == nil || p.rank < first.rank {
			first = p
		}
	}
	if first == nil {
		return condition{status: cache.Present}
	}
	return condition{status: cache.Failed, err: first.failed}
}

// keys yields those of all members.
func (u *union) keys(yield func(string)) {
	for key := range u.members {
		yield(key)
	}
}

func (u *union) refresh() {
	for _, p := range u.parts {
		p.source.refresh()
	}
}

func (u *union) close() {
	for _, p := range u.parts {
		p.source.close()
	}
	u.members = nil
}
