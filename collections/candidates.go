package collections

import (
	"container/heap"
)

// Several members can have one name, and only one of them is used. A control plane decides how
// many compete: all entries of a list may lead to one name. So the cost of one change must not grow
// with their number.

// candidateOf returns the candidate of an input, the zero candidate if it has none.
func (c *candidates) candidateOf(p *input) candidate {
	if c.several == nil {
		if c.one.from == p {
			return c.one.candidate
		}
		return candidate{}
	}
	if i, there := c.several.index[p]; there {
		return c.several.list[i].candidate
	}
	return candidate{}
}

// set replaces the candidate of an input.
func (c *candidates) set(p *input, is candidate) {
	none := is == candidate{}
	switch {
	case c.several != nil:
		c.several.set(p, is)
		if len(c.several.list) == 1 {
			c.one, c.several = c.several.list[0], nil
		}
	case none:
		if c.one.from == p {
			c.one = rankedCandidate{}
		}
	case c.one.from == nil || c.one.from == p:
		c.one = rankedCandidate{p, is}
	default:
		c.several = &candidateHeap{index: map[*input]int{}}
		c.several.set(c.one.from, c.one.candidate)
		c.several.set(p, is)
		c.one = rankedCandidate{}
	}
}

func (c *candidates) empty() bool { return c.several == nil && c.one.from == nil }

// leader returns the candidate that wins, the zero value if there is none.
func (c *candidates) leader() rankedCandidate {
	first := c.one
	if c.several != nil {
		first = c.several.list[0]
	}
	if first.from == nil || first.from.rank < 0 {
		return rankedCandidate{}
	}
	return first
}

// reorder restores the order after the ranks of inputs have changed.
func (c *candidates) reorder() {
	if c.several != nil {
		heap.Init(c.several)
	}
}

// mostCompared is the number of candidates among which next searches.
const mostCompared = 16

// next returns the first candidate after the winner that has a different content and is
// not leaving. It returns the zero value if it finds none among the first mostCompared.
func (c *candidates) next(won rankedCandidate) (next rankedCandidate) {
	if c.several == nil || won.from == nil {
		return rankedCandidate{}
	}
	list := c.several.list
	// In a heap, the next element is a child of one that was visited already.
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
			if c.several.Less(front[i], front[first]) {
				first = i
			}
		}
		at := front[first]
		front[first] = front[len(front)-1]
		front = front[:len(front)-1]
		o := &list[at]
		if o.resource == nil || o.from.rank < 0 || o.from.rank >= leaving {
			break // the same holds for all after it
		}
		if o.from != won.from && o.resource.Hash() != won.resource.Hash() {
			return *o
		}
		add(2*at + 1)
		add(2*at + 2)
	}
	return rankedCandidate{}
}

// before is the order of candidates: inputs that count come first, then candidates with a
// resource, then lower ranks.
func (o rankedCandidate) before(other rankedCandidate) bool {
	if counts, counted := o.from.rank >= 0, other.from.rank >= 0; counts != counted {
		return counts
	}
	if has, had := o.resource != nil, other.resource != nil; has != had {
		return has
	}
	return o.from.rank < other.from.rank
}

func (r *candidateHeap) set(p *input, is candidate) {
	i, there := r.index[p]
	switch none := is == (candidate{}); {
	case there && none:
		heap.Remove(r, i)
	case there:
		r.list[i].candidate = is
		heap.Fix(r, i)
	case !none:
		heap.Push(r, rankedCandidate{p, is})
	}
}

// Len implements heap.Interface.
func (r *candidateHeap) Len() int { return len(r.list) }

// Less implements heap.Interface.
func (r *candidateHeap) Less(i, j int) bool { return r.list[i].before(r.list[j]) }

// Swap implements heap.Interface.
func (r *candidateHeap) Swap(i, j int) {
	r.list[i], r.list[j] = r.list[j], r.list[i]
	r.index[r.list[i].from], r.index[r.list[j].from] = i, j
}

// Push implements heap.Interface.
func (r *candidateHeap) Push(x any) {
	c, _ := x.(rankedCandidate)
	r.index[c.from] = len(r.list)
	r.list = append(r.list, c)
}

// Pop implements heap.Interface.
func (r *candidateHeap) Pop() any {
	last := len(r.list) - 1
	c := r.list[last]
	r.list[last] = rankedCandidate{}
	r.list = r.list[:last]
	delete(r.index, c.from)
	return c
}
