package graph

import "github.com/xds-relay/xds-relay/internal/xdstype"

// This file finds the resources that others lead to.

// Reach returns what clients of resources need: the resources themselves and those that they name, directly or
// indirectly, breadth first and each once. It includes missing resources.
func (g *Graph) Reach(ids ...ID) (reached []ID) {
	seen := make([]bool, len(g.all))
	var queue []int
	visit := func(n int) {
		if !seen[n] {
			seen[n] = true
			queue = append(queue, n)
		}
	}
	for _, id := range ids {
		if n, ok := g.nodes[id.canonical()]; ok {
			visit(n)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		n := &g.all[queue[0]]
		if !n.set {
			reached = append(reached, n.id)
		}
		for _, target := range n.targets {
			visit(target)
		}
	}
	return reached
}

// named are the types that clients get only by reference. They get resources of other types without one.
var named = map[string]bool{
	xdstype.RouteV3: true, xdstype.ScopedRouteV3: true, xdstype.VirtualHostV3: true, xdstype.ClusterV3: true,
	xdstype.EndpointsV3: true, xdstype.LocalityEndpointV3: true, xdstype.SecretV3: true, xdstype.ExtensionConfigV3: true,
}

// Named reports whether clients get resources of a type only if another resource names them, or if they have
// requested all.
func Named(typeURL string) bool { return named[typeURL] }

// Unused returns the resources that no client uses: they are reached neither from a listener, nor from another
// resource that clients request without a reference, nor from roots. They are in the order in which they were added.
func (g *Graph) Unused(roots ...ID) (unused []ID) {
	for i := range g.all {
		if g.all[i].there && !named[g.all[i].id.TypeURL] {
			roots = append(roots, g.all[i].id)
		}
	}
	reached := map[ID]bool{}
	for _, id := range g.Reach(roots...) {
		reached[id] = true
	}
	for i := range g.all {
		if n := &g.all[i]; n.there && !reached[n.id] {
			unused = append(unused, n.id)
		}
	}
	return unused
}
