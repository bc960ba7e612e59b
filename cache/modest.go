package cache

// manyWatchers is from how many on an entry counts as asked for by small clients: it is
// not one client's alone.
const manyWatchers = 16

// HasSmallClient says whether the entry under k is watched for a client that asks for little of
// its type: entries whose names are at most so many bytes together. Where there is not
// room for everything, a client that asks for much must not keep it from others.
func (c *Cache) HasSmallClient(k Key, most int64) (modest bool) {
	c.read(k, func(t *table) {
		if e := t.entries[k.Name]; e != nil {
			modest = e.hasSmallClient(most)
		}
	})
	return modest
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
