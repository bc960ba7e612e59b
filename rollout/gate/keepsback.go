package gate

import "github.com/xds-relay/xds-relay/cache"

// KeepsBack reports for each name whether there is a newer state that clients on the accepted side do not get yet. If
// topic is a wildcard or glob, the names are its members (as in cache.Change). Otherwise topic is any name of the
// same scope and type.
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
