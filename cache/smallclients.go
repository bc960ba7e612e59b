package cache

// manyWatchers is the number of clients that make an entry count as watched by small clients.
const manyWatchers = 16

// HasSmallClient reports whether a small client watches the entry under k: a client whose names of the
// type have, together, no more than most bytes. Where room is limited, a client with very many names
// must not displace the names of small clients.
func (c *Cache) HasSmallClient(k Key, most int64) (small bool) {
	c.read(k, func(t *table) {
		if e := t.entries[k.Name]; e != nil {
			small = e.hasSmallClient(most)
		}
	})
	return small
}

func (t *topic) hasSmallClient(most int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.groupWatches) >= manyWatchers {
		return true
	}
	clients := int64(0)
	for _, w := range t.groupWatches {
		if clients += max(1, w.Group.Clients.Load()); clients >= manyWatchers {
			return true
		}
		if w.Group.nameBytes.Load() <= most {
			return true
		}
	}
	return false
}
