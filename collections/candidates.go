package collections

import (
	"container/heap"
)

// Of one name there can be as many candidates as a control plane likes: all entries of a
// list may come to the same name. So the work for one of them does not grow with the
// others.

// candidates are what the parts of a union offer under one key.
type candidates struct {
	one     candidate // the only one, if rivals is nil
	rivals  *rivals
	elected offer // what counts
}

type candidate struct {
	from *part
	offer
}

// rivals are several candidates, as a heap: the first is the one that counts. at is where
// each part's is.
type rivals struct {
	list []candidate
	at   map[*part]int
}

// of returns what a part offers.
func (c *candidates) of(p *part) offer {
	if c.rivals == nil {
		if c.one.from == p {
			return c.one.offer
		}
		return offer{}
	}
	if i, there := c.rivals.at[p]; there {
		return c.rivals.list[i].offer
	}
	return offer{}
}

// put notes what a part offers.
func (c *candidates) put(p *part, is offer) {
	none := is == offer{}
	switch {
	case c.rivals != nil:
		c.rivals.put(p, is)
		if len(c.rivals.list) == 1 {
			c.one, c.rivals = c.rivals.list[0], nil
		}
	case none:
		if c.one.from == p {
			c.one = candidate{}
		}
	case c.one.from == nil || c.one.from == p:
		c.one = candidate{p, is}
	default:
		c.rivals = &rivals{at: map[*part]int{}}
		c.rivals.put(c.one.from, c.one.offer)
		c.rivals.put(p, is)
		c.one = candidate{}
	}
}

func (c *candidates) empty() bool { return c.rivals == nil && c.one.from == nil }

// best returns the candidate that counts.
func (c *candidates) best() candidate {
	first := c.one
	if c.rivals != nil {
		first = c.rivals.list[0]
	}
	if first.from == nil || first.from.rank < 0 {
		return candidate{}
	}
	return first
}

// reorder is for when the ranks of parts have changed.
func (c *candidates) reorder() {
	if c.rivals != nil {
		heap.Init(c.rivals)
	}
}

// mostCompared is among how many of the candidates that come next one of another content
// is looked for.
const mostCompared = 16

// next returns the first of the candidates after the one that counts that has another
// content and does not go, if it is near.
func (c *candidates) next(won candidate) (next candidate) {
	if c.rivals == nil || won.from == nil {
		return candidate{}
	}
	list := c.rivals.list
	// What comes next is below what came before.
	var front []int
	add := func(i int) {
		if i < len(list) {
			front = append(front, i)
		}
	}
	add(0)
	for range mostCompared {
		if len(front) == 0 {
			break
		}
		first := 0
		for i := range front {
			if c.rivals.Less(front[i], front[first]) {
				first = i
			}
		}
		at := front[first]
		front[first] = front[len(front)-1]
		front = front[:len(front)-1]
		o := &list[at]
		if o.resource == nil || o.from.rank < 0 || o.from.rank >= leaving {
			break // and so are those after it
		}
		if o.from != won.from && o.resource.Hash() != won.resource.Hash() {
			return *o
		}
		add(2*at + 1)
		add(2*at + 2)
	}
	return candidate{}
}

// before says whether a candidate goes before another: those that count, then one that can
// be had before one that cannot, else by the order of the parts.
func (o candidate) before(other candidate) bool {
	if counts, counted := o.from.rank >= 0, other.from.rank >= 0; counts != counted {
		return counts
	}
	if has, had := o.resource != nil, other.resource != nil; has != had {
		return has
	}
	return o.from.rank < other.from.rank
}

func (r *rivals) put(p *part, is offer) {
	i, there := r.at[p]
	switch none := is == (offer{}); {
	case there && none:
		heap.Remove(r, i)
	case there:
		r.list[i].offer = is
		heap.Fix(r, i)
	case !none:
		heap.Push(r, candidate{p, is})
	}
}

// Len implements heap.Interface.
func (r *rivals) Len() int { return len(r.list) }

// Less implements heap.Interface.
func (r *rivals) Less(i, j int) bool { return r.list[i].before(r.list[j]) }

// Swap implements heap.Interface.
func (r *rivals) Swap(i, j int) {
	r.list[i], r.list[j] = r.list[j], r.list[i]
	r.at[r.list[i].from], r.at[r.list[j].from] = i, j
}

// Push implements heap.Interface.
func (r *rivals) Push(x any) {
	c, _ := x.(candidate)
	r.at[c.from] = len(r.list)
	r.list = append(r.list, c)
}

// Pop implements heap.Interface.
func (r *rivals) Pop() any {
	last := len(r.list) - 1
	c := r.list[last]
	r.list[last] = candidate{}
	r.list = r.list[:last]
	delete(r.at, c.from)
	return c
}
