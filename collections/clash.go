package collections

import (
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Clashes: two members with one name and different contents, of which only the first is
// used. During a round, the sources are updated one after another, so the Resolver looks for
// clashes at the end of the round.

// reportClashes logs each new clash once.
func (r *Resolver) reportClashes() {
	for d := range r.sets.clashKeys {
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
		if log, ok := d.union.logs.clashes.Next(d.union.log); ok {
			log.Warn("two members have the same name: the first one is used", "member", loglines.Clip(d.key), "first", is.winner.label, "other", is.loser.label)
		}
	}
	clear(r.sets.clashKeys)
}

// clash returns the clash of a key, if there is one. Leaving members do not count.
func (u *union) clash(key string) (is clash, found bool) {
	c := u.members[key]
	if c == nil {
		return clash{}, false
	}
	won := c.leader()
	next := c.next(won)
	if next.from == nil || won.from.rank >= leaving {
		return clash{}, false
	}
	return clash{won.from, next.from}, true
}
