package cache

// Contents calls yield for each cached resource of a topic: that of an entry, or the members of a
// set, with their keys. A set is locked meanwhile: yield must be short and must not call the cache.
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
