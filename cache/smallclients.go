package cache

// manyWatchers is the number of watchers from which on an entry counts as that of small clients:
// it is not one client's alone.
const manyWatchers = 16

// HasSmallClient reports whether a small client watches the entry under k: one whose names of the
// type are at most so many bytes together. Where room is limited, a client with very many names
// must not displace those of small clients.
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
