package collections

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

// maxClashes is how many clashes are told one by one in a round.
const maxClashes = 10

// tellClashes tells of the clashes that are new, each once.
func (r *Resolver) tellClashes() {
	told := 0
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
		if told++; told <= maxClashes {
			d.union.log.Warn("two members of one name: the first collection's counts", "member", d.key, "first", is.winner.label, "other", is.loser.label)
		}
	}
	clear(r.sets.doubtful)
	if told > maxClashes {
		r.log.Warn("more members of one name: the first collections' count", "members", told-maxClashes)
	}
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
