package graph

import "slices"

// Cycles returns the groups of resources in which each resource leads to all others and to itself. References that
// are optional or name several resources do not count. Each group is in the order in which its resources were added.
//
// It uses Tarjan's algorithm, without recursion.
func (g *Graph) Cycles() (cycles [][]ID) {
	s := search{g: g, found: make([]int, len(g.all)), low: make([]int, len(g.all)), open: make([]bool, len(g.all))}
	for i := range g.all {
		if s.found[i] == 0 {
			s.from(i)
		}
	}
	for _, group := range s.groups {
		slices.Sort(group)
		ids := make([]ID, len(group))
		for i, n := range group {
			ids[i] = g.all[n].id
		}
		cycles = append(cycles, ids)
	}
	return cycles
}

// search is a depth-first search through a graph.
type search struct {
	g          *Graph
	found, low []int // by node: when it was found, from 1, and the first open node it leads to
	open       []bool
	stack      []int // the open nodes
	count      int
	groups     [][]int
}

// frame is a node on the search's path, and the index of its next reference.
type frame struct{ node, next int }

func (s *search) from(root int) {
	frames := []frame{{node: s.enter(root)}}
	for len(frames) > 0 {
		top := &frames[len(frames)-1]
		n := &s.g.all[top.node]
		if top.next == len(n.targets) {
			s.leave(top.node)
			frames = frames[:len(frames)-1]
			if len(frames) > 0 {
				parent := frames[len(frames)-1].node
				s.low[parent] = min(s.low[parent], s.low[top.node])
			}
			continue
		}
		target, r := n.targets[top.next], n.references[top.next]
		top.next++
		switch {
		case r.Optional || r.Many:
		case s.found[target] == 0:
			frames = append(frames, frame{node: s.enter(target)})
		case s.open[target]:
			s.low[top.node] = min(s.low[top.node], s.found[target])
		}
	}
}

func (s *search) enter(n int) int {
	s.count++
	s.found[n], s.low[n], s.open[n] = s.count, s.count, true
	s.stack = append(s.stack, n)
	return n
}

// leave finishes a node. If the node is the first of a group, the rest of the stack is the group.
func (s *search) leave(n int) {
	if s.low[n] != s.found[n] {
		return
	}
	start := len(s.stack) - 1
	for s.stack[start] != n {
		start--
	}
	group := slices.Clone(s.stack[start:])
	s.stack = s.stack[:start]
	for _, member := range group {
		s.open[member] = false
	}
	if len(group) > 1 || s.namesItself(n) {
		s.groups = append(s.groups, group)
	}
}

func (s *search) namesItself(n int) bool {
	for i, target := range s.g.all[n].targets {
		if r := s.g.all[n].references[i]; target == n && !r.Optional && !r.Many {
			return true
		}
	}
	return false
}
