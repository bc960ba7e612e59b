package cache

// Reloading the configuration.

// Configure changes the settings. A new Options.Tombstones applies only to sets that begin later.
func (c *Cache) Configure(o Options) {
	c.mu.Lock()
	c.tombstones = o.Tombstones
	c.mu.Unlock()
	c.idle.configure(o)
}

// tombstonesNow returns the settings for a set that begins.
func (c *Cache) tombstonesNow() Tombstones {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.tombstones
}

// configure changes the settings, and drops the topics that exceed the new limits.
func (i *idle) configure(o Options) {
	i.mu.Lock()
	i.linger, i.limit = o.Linger, max(o.IdleEntries, 1)
	i.groups.setLimit(o.IdleScopes)
	if i.timer != nil {
		i.schedule() // it was set for the previous linger time
	}
	i.mu.Unlock()
	i.dropExcess()
}

// EachTopic calls f with the key of each topic of a scope. During a call of f, no topic of the scope begins
// or ends, and f must do no more than a [Source] may. Between the calls, topics may begin and end: f is
// not called for topics that have ended, and perhaps not for topics that have begun.
func (c *Cache) EachTopic(scope Scope, f func(Key)) {
	if topics := c.topics(scope); topics != nil {
		topics.each(func(k Key, _ *Entry, _ *Set) { f(k) })
	}
}

// each calls f with each topic, which is an entry or a set: see Cache.EachTopic.
func (ts *scopeTopics) each(f func(Key, *Entry, *Set)) {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	n := 0
	breathe := func() {
		if n++; n%atOnce == 0 { // lets others take the lock
			ts.mu.RUnlock()
			ts.mu.RLock()
		}
	}
	for typeURL, t := range ts.tables {
		for name, e := range t.entries {
			if t.entries[name] == e { // it may have ended, and the map been replaced
				f(e.key, e, nil)
			}
			breathe()
		}
		for name, s := range t.sets {
			if t.sets[name] == s {
				f(Key{Scope: ts.scope, TypeURL: typeURL, Name: name}, nil, s)
			}
			breathe()
		}
	}
}

// Scopes returns all scopes that have a topic.
func (c *Cache) Scopes() []Scope {
	c.mu.RLock()
	defer c.mu.RUnlock()
	scopes := make([]Scope, 0, len(c.scopes))
	for s := range c.scopes {
		scopes = append(scopes, s)
	}
	return scopes
}
