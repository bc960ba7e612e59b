package collections

import (
	"slices"

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
	offers int          // members that can be had
}

const (
	notCounted = -1
	// leaving is the rank of the first of those that go as soon as the others are
	// known.
	leaving = 1 << 30
)

// candidates are what the parts offer under one key.
type candidates struct {
	first candidate
	more  []candidate
	won   offer
}

type candidate struct {
	from *part
	offer
}

func newUnion(s *setting, up sink) *union {
	return &union{setting: s, up: up, members: map[string]*candidates{}, several: map[string]struct{}{}, clashes: map[string]clash{}}
}

// add adds a part, whose source open makes.
func (u *union) add(label string, rank int, open func(*part) source) *part {
	p := &part{union: u, label: label, rank: rank}
	u.parts = append(u.parts, p)
	u.open++
	p.source = open(p)
	p.turned()
	return p
}

// remove ends a part.
func (u *union) remove(p *part) {
	key, one := p.source.only()
	p.source.close()
	if one {
		p.withdraw(key)
	} else {
		for key := range u.members {
			p.withdraw(key)
		}
	}
	if i := slices.Index(u.parts, p); i >= 0 {
		u.parts = slices.Delete(u.parts, i, i+1)
	}
	if !p.known {
		u.open--
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
		c = &candidates{first: candidate{from: p}}
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
	if len(c.more) > 0 {
		u.several[key] = struct{}{}
	} else {
		delete(u.several, key)
	}
	u.elect(key, c, p, again)
}

func (p *part) withdraw(key string) { p.offer(key, offer{}, false) }

// put notes what a part offers.
func (c *candidates) put(p *part, is offer) {
	i := slices.IndexFunc(c.more, func(o candidate) bool { return o.from == p })
	none := is == (offer{})
	switch {
	case c.first.from == p && !none:
		c.first.offer = is
	case c.first.from == p && len(c.more) > 0:
		c.first = c.more[0]
		c.more = slices.Delete(c.more, 0, 1)
	case c.first.from == p:
		c.first = candidate{}
	case i >= 0 && !none:
		c.more[i].offer = is
	case i >= 0:
		c.more = slices.Delete(c.more, i, i+1)
	case !none:
		c.more = append(c.more, candidate{p, is})
	}
	if len(c.more) == 0 {
		c.more = nil
	}
}

// best returns the candidate that counts, and the next of another content.
func (c *candidates) best() (won, next candidate) {
	won = c.first
	if won.from != nil && won.from.rank < 0 {
		won = candidate{}
	}
	for _, o := range c.more {
		if o.from.rank >= 0 && (won.from == nil || o.before(won)) {
			won = o
		}
	}
	for i := -1; i < len(c.more); i++ {
		o := c.first
		if i >= 0 {
			o = c.more[i]
		}
		if o.resource == nil || o.from.rank < 0 || o.from.rank >= leaving || o.from == won.from || o.resource.Hash() == won.resource.Hash() {
			continue
		}
		if next.from == nil || o.before(next) {
			next = o
		}
	}
	return won, next
}

// before says whether a candidate goes before another: one that can be had before one
// that cannot, else by the order of the parts.
func (o candidate) before(other candidate) bool {
	if has, had := o.resource != nil, other.resource != nil; has != had {
		return has
	}
	return o.from.rank < other.from.rank
}

// elect decides which candidate counts, after a part has offered another.
func (u *union) elect(key string, c *candidates, by *part, again bool) {
	was := c.won
	won, _ := c.best()
	c.won = won.offer
	if _, told := u.clashes[key]; told || len(c.more) > 0 {
		u.sets.doubtful[doubt{u, key}] = struct{}{}
	}
	if c.first.from == nil {
		delete(u.members, key)
	}
	if again = again && won.from == by; c.won != was || again {
		u.up.elected(key, was, c.won, again)
	}
}

// reelect decides anew after the ranks of parts have changed: of all keys if some
// counts that did not before, or the other way round.
func (u *union) reelect(all bool) {
	if all {
		for key, c := range u.members {
			u.elect(key, c, nil, false)
		}
		return
	}
	for key := range u.several {
		u.elect(key, u.members[key], nil, false)
	}
}

// condition is that of the parts together: what cannot be had of them does not keep the
// others from being known.
func (u *union) condition() condition {
	if u.open > 0 {
		return condition{status: cache.Requested}
	}
	var failed *cache.Error
	for _, p := range u.parts {
		if p.failed == nil {
			return condition{status: cache.Present}
		}
		if failed == nil {
			failed = p.failed
		}
	}
	if failed == nil {
		return condition{status: cache.Present}
	}
	return condition{status: cache.Failed, err: failed}
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
