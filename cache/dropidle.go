package cache

import "time"

// DropIdle drops the entries of a scope that linger. Entries that lose their last watcher within the next time do not
// begin to linger. It is for control planes that do not answer a request of a name that they no longer have, nor of
// any other name in that request: when such a control plane changes its state, only names that somebody watches may be
// requested.
func (c *Cache) DropIdle(scope Scope, within time.Duration) {
	topics := c.topics(scope)
	if topics == nil {
		return
	}
	topics.impatient.Store(time.Now().Add(within).UnixNano())
	for _, tp := range c.idle.entriesOf(scope) {
		if since, ok := tp.idles(); ok {
			c.giveUp(tp, since)
		}
	}
}

// entriesOf returns the entries of a scope that linger.
func (i *idle) entriesOf(scope Scope) (entries []*topic) {
	i.mu.Lock()
	defer i.mu.Unlock()
	g := i.groups.all[idleGroup{Scope: scope}]
	if g == nil {
		return nil
	}
	for tp := range g.idle {
		if tp.entry != nil {
			entries = append(entries, tp)
		}
	}
	return entries
}
