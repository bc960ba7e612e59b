package cache

// manyWatchers is from how many on an entry counts as asked for by modest clients: it is
// not one client's alone.
const manyWatchers = 16

// Modest says whether the entry under k is watched for a client that asks for little of
// its type: entries whose names are at most so many bytes together. Where there is not
// room for everything, a client that asks for much must not keep it from others.
func (c *Cache) Modest(k Key, most int64) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	t := c.tables[tableKey{k.Scope, k.TypeURL}]
	if t == nil || t.entries[k.Name] == nil {
		return false
	}
	tp := &t.entries[k.Name].topic
	tp.mu.Lock()
	defer tp.mu.Unlock()
	if len(tp.crowd) >= manyWatchers {
		return true
	}
	for _, w := range tp.crowd {
		if w.Audience.nameBytes.Load() <= most {
			return true
		}
	}
	return false
}
