package graph

import (
	"strings"

	"github.com/xds-relay/xds-relay/urn"
)

// Builder collects the resources of a graph. It is not safe for concurrent use.
type Builder struct{ g *Graph }

// NewBuilder returns a Builder without resources.
func NewBuilder() *Builder { return &Builder{&Graph{nodes: map[ID]int{}}} }

// Add adds a resource and its references. The last Add of an ID wins.
func (b *Builder) Add(id ID, references []Reference) {
	n := &b.g.all[b.g.node(id)]
	n.id, n.there, n.references = id, true, references
}

// Graph returns the graph. The Builder must not be used afterwards.
func (b *Builder) Graph() *Graph {
	g := b.g
	b.g = nil
	g.link()
	return g
}

// Graph is a set of resources and their references. It does not change, so it may be used concurrently. Different
// spellings of a name are the same resource.
type Graph struct {
	nodes map[ID]int // indices in all, by canonical ID
	all   []node     // in the order in which they were added
}

// node is a resource, or a name that a resource references.
type node struct {
	id         ID
	there      bool
	set        bool // the node is not a resource, but stands for several
	references []Reference
	targets    []int // by reference: the node that it names
}

// Edge is a reference and the resource that has it.
type Edge struct {
	From ID
	Reference
}

// node returns the node with an ID, and adds it if there is none.
func (g *Graph) node(id ID) int {
	key := id.canonical()
	n, ok := g.nodes[key]
	if !ok {
		n = len(g.all)
		g.nodes[key] = n
		g.all = append(g.all, node{id: id})
	}
	return n
}

// link resolves the names. A name of several resources becomes a node of its own, which references them.
func (g *Graph) link() {
	resources := len(g.all) // nodes that are added from here on are only names
	sets := false
	for i := range resources {
		n := &g.all[i]
		targets := make([]int, len(n.references))
		for j, r := range n.references {
			targets[j] = g.node(r.To)
			if r.Many && targets[j] >= resources {
				g.all[targets[j]].set, sets = true, true
			}
		}
		g.all[i].targets = targets // the call of node may have reallocated all
	}
	if !sets {
		return
	}
	for i := range resources {
		for _, name := range SetsOf(g.all[i].id) {
			set, ok := g.nodes[ID{g.all[i].id.TypeURL, name}]
			if !ok || !g.all[set].set {
				continue
			}
			s := &g.all[set]
			s.references = append(s.references, Reference{To: g.all[i].id})
			s.targets = append(s.targets, i)
		}
	}
}

// SetsOf returns the names of several resources that include this resource, in the form of references with Many.
func SetsOf(id ID) []string {
	name := id.canonical().Name
	sets := []string{everything}
	if glob, ok := globOf(name); ok {
		sets = append(sets, glob)
	}
	return sets
}

// find returns a node, nil if the graph does not have the ID.
func (g *Graph) find(id ID) *node {
	if n, ok := g.nodes[id.canonical()]; ok {
		return &g.all[n]
	}
	return nil
}

// From returns the references of a resource, in the order of its fields.
func (g *Graph) From(id ID) []Reference {
	n := g.find(id)
	if n == nil || !n.there {
		return nil
	}
	return n.references
}

// Dangling returns the references to missing resources that clients request from their own control plane.
func (g *Graph) Dangling() (edges []Edge) {
	for i := range g.all {
		n := &g.all[i]
		if !n.there {
			continue
		}
		for j, r := range n.references {
			if r.Source == Stream && !r.Many && !g.all[n.targets[j]].there {
				edges = append(edges, Edge{n.id, r})
			}
		}
	}
	return edges
}

// globOf returns the glob of a canonical name's directory.
func globOf(name string) (glob string, ok bool) {
	if urn.IsXdstp(name) {
		return urn.GlobOf(name)
	}
	slash := strings.LastIndexByte(name, '/')
	return name[:slash+1] + everything, slash >= 0
}
