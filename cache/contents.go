package cache

// Contents calls yield for each cached resource of a topic: the resource of an entry, or each member
// of a set with its key. A set is locked during the call: yield must be short and must not call the
// cache.
func (c *Cache) Contents(k Key, yield func(key string, r *Resource)) {
	c.read(k, func(t *table) {
		if e := t.entries[k.Name]; e != nil {
			if r := e.State().Resource; r != nil {
				yield(k.Name, r)
			}
			return
		}
		s := t.sets[k.Name]
		if s == nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.status != Present {
			return
		}
		for m := range s.members.All() {
			if !m.Removed {
				yield(s.members.Key(m), m.Resource)
			}
		}
	})
}
