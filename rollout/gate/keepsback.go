package gate

import "github.com/xds-relay/xds-relay/cache"

// KeepsBack reports of some names whether there is something newer of them that the clients on the accepted
// side do not get yet. topic is a wildcard or glob, of which the names are members (as in cache.Change), or else a
// name of the scope and type of all of them.
func (c *Controller) KeepsBack(topic cache.Key, names []string) []bool {
	c.mu.Lock()
	g := c.gates[topic.Scope.Accepted()]
	c.mu.Unlock()
	kept := make([]bool, len(names))
	if g == nil || topic.Scope.Derived != "" {
		return kept
	}
	i := item{typeURL: topic.TypeURL}
	if topic.IsSet() {
		i.set = topic.Name
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.pending.changes)+len(g.later.changes) == 0 {
		return kept
	}
	for at, name := range names {
		i.name = name
		_, waits := g.later.changes[i]
		kept[at] = waits || g.pending.changes[i] != nil
	}
	return kept
}
