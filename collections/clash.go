package collections

import (
	"github.com/xds-relay/xds-relay/loglines"
)

// Clashes: two different members of one name, of which only the first is seen. They
// are looked for when a round is over, since in its course sources are read one after
// the other.

// clash is the parts that two members come from.
type clash struct{ winner, loser *part }

// doubt is a key of which there may be a clash.
type doubt struct {
	union *union
	key   string
}

// tellClashes tells of the clashes that are new, each once.
func (r *Resolver) tellClashes() {
	for d := range r.sets.doubtful {
		is, found := d.union.clash(d.key)
		switch {
		case !found:
			delete(d.union.clashes, d.key)
			continue
		case d.union.clashes[d.key] == is:
			continue
		}
		d.union.clashes[d.key] = is
		r.sets.clashes.Add(1)
		if log, ok := d.union.lines.clashes.Next(d.union.log); ok {
			log.Warn("two members of one name: the first collection's counts", "member", loglines.Clip(d.key), "first", is.winner.label, "other", is.loser.label)
		}
	}
	clear(r.sets.doubtful)
}

// clash returns the clash of a key, if there is one. Those that are about to go do not
// count.
func (u *union) clash(key string) (is clash, found bool) {
	c := u.members[key]
	if c == nil {
		return clash{}, false
	}
	won := c.best()
	next := c.next(won)
	if next.from == nil || won.from.rank >= leaving {
		return clash{}, false
	}
	return clash{won.from, next.from}, true
}
