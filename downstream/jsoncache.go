package downstream

import (
	"slices"
	"sync"

	"google.golang.org/grpc/mem"
)

// What was rendered as JSON last.

// jsonCache has what was rendered last, for the many clients that wait for the
// same and get it at the same moment.
type jsonCache struct {
	mu      sync.Mutex
	entries []*jsonEntry // the one used last at the end
	size    int          // of their resources, encoded
}

type jsonKey struct {
	shared  *byte // the resources' first: equal only for the same bytes, as it keeps them
	size    int   // of the resources, encoded
	version string
	path    string
}

type jsonEntry struct {
	key jsonKey
	// resources are what clients share as long as somebody has it.
	resources mem.Buffer
	once      sync.Once
	body      []byte
	err       error
}

func (c *jsonCache) entry(key jsonKey, resources mem.Buffer) *jsonEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &jsonEntry{key: key, resources: resources}
	if i := slices.IndexFunc(c.entries, func(e *jsonEntry) bool { return e.key == key }); i >= 0 {
		e = c.entries[i]
		c.entries = slices.Delete(c.entries, i, i+1)
	} else {
		c.size += key.size
	}
	c.entries = append(c.entries, e)
	for (c.size > maxJSONCached || len(c.entries) > mostJSONCached) && len(c.entries) > 1 {
		c.size -= c.entries[0].key.size
		c.entries = slices.Delete(c.entries, 0, 1)
	}
	return e
}

// get renders the entry the first time.
func (e *jsonEntry) get(render func() ([]byte, error)) ([]byte, error) {
	e.once.Do(func() { e.body, e.err = render() })
	return e.body, e.err
}

const (
	minJSONCached  = 1 << 10  // bytes of resources
	maxJSONCached  = 32 << 20 // of all; the newest may be larger
	mostJSONCached = 1 << 8   // entries
)
