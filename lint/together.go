package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// This file checks resources together.

// together adds the findings from the graph of all resources.
func (c *checker) together() {
	g, places := c.graph()
	c.dangling(g, places)
	c.cycles(g, places)
	c.depths(g, places)
	if c.Part {
		return
	}
	for _, id := range g.Unused() {
		c.broken(unused, places[id], "", "no listener leads to it")
	}
}

// graph returns the graph of the resources, and their indices.
func (c *checker) graph() (*graph.Graph, map[graph.ID]int) {
	b := graph.NewBuilder()
	places := make(map[graph.ID]int, len(c.resources))
	for i, r := range c.resources {
		id := graph.ID{TypeURL: r.TypeURL, Name: r.Name}
		var references []graph.Reference
		if c.read[i] {
			references, _ = graph.References(r.TypeURL, r.Value) // if the resource cannot be decoded, the taster reports why
		}
		places[id] = i
		b.Add(id, references)
	}
	return b.Graph(), places
}

// dangling adds findings for references to missing resources.
func (c *checker) dangling(g *graph.Graph, places map[graph.ID]int) {
	for _, e := range g.Dangling() {
		if c.Elsewhere != nil && c.Elsewhere(e.To) {
			continue
		}
		rule := rules[dangling]
		f := Finding{Rule: rule, Severity: rule.Severity, Resource: places[e.From], Path: e.Path}
		f.Text = fmt.Sprintf("%s %s %s", shortType(e.To.TypeURL), quoted(e.To.Name), c.why(e.To))
		switch {
		case e.Optional && e.To.TypeURL == xdstype.ClusterV3:
			f.Severity = Warning
			f.Text += ", if it is not in the bootstrap of the clients"
		case e.Optional:
			f.Severity = Warning
			f.Text += ", so the default is used"
		}
		c.add(f)
	}
}

// why returns why a resource is missing.
func (c *checker) why(id graph.ID) string {
	if c.Why != nil {
		if why := c.Why(id); why != "" {
			return why
		}
	}
	return "does not exist"
}

// cycles adds findings for aggregate clusters that contain themselves.
func (c *checker) cycles(g *graph.Graph, places map[graph.ID]int) {
	for _, cycle := range g.Cycles() {
		if cycle[0].TypeURL != xdstype.ClusterV3 {
			continue // Envoy's internal listeners may refer to themselves
		}
		text := "it contains itself"
		if len(cycle) > 1 {
			text = fmt.Sprintf("it contains itself, through %s", quoted(cycle[1].Name))
		}
		c.broken(aggregateCycle, places[cycle[0]], "cluster_type.typed_config.clusters", text)
	}
}

// deepest is the number of nested levels below an aggregate cluster that is too large for gRPC.
const deepest = 16

// depths adds findings for clusters whose chain of nested clusters is exactly too long: clusters above them lead to
// the same chain. Cycles are other findings.
func (c *checker) depths(g *graph.Graph, places map[graph.ID]int) {
	below := map[graph.ID]bool{} // clusters with a chain below them that is as long as the number of rounds
	for id := range places {
		below[id] = id.TypeURL == xdstype.ClusterV3
	}
	for _, cycle := range g.Cycles() {
		for _, id := range cycle {
			below[id] = false
		}
	}
	var tooDeep map[graph.ID]bool
	for range deepest + 1 {
		tooDeep = below
		below = map[graph.ID]bool{}
		for id := range tooDeep {
			below[id] = tooDeep[id] && slices.ContainsFunc(g.From(id), func(r graph.Reference) bool {
				return r.To.TypeURL == xdstype.ClusterV3 && !r.Optional && tooDeep[r.To]
			})
		}
	}
	for id, is := range tooDeep {
		if is && !below[id] {
			c.broken(aggregateDepth, places[id], "cluster_type.typed_config.clusters", fmt.Sprintf("it has %d levels of clusters below it", deepest))
		}
	}
}

// shortType returns the name of a type's message, without its package.
func shortType(typeURL string) string {
	return typeURL[strings.LastIndexAny(typeURL, "./")+1:]
}
