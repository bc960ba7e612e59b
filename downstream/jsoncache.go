package downstream

import (
	"slices"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/internal/descriptors"
)

// A cache of rendered JSON.

// jsonCache has the newest rendered responses, for the many clients that wait for the same response and get it at the
// same moment.
type jsonCache struct {
	mu      sync.Mutex
	entries []*jsonEntry // the most recently used at the end
	size    int          // of their resources, encoded
}

type jsonKey struct {
	shared  *byte // the resources' first byte: equal only for the same buffer, as the entry keeps that alive
	size    int   // of the resources, encoded
	version string
	path    string
	types   *descriptors.Set // decides what has a form in JSON
}

type jsonEntry struct {
	key jsonKey
	// resources are bytes that clients share; the reference keeps them alive.
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

// get returns the JSON. The first call renders it.
func (e *jsonEntry) get(render func() ([]byte, error)) ([]byte, error) {
	e.once.Do(func() { e.body, e.err = render() })
	return e.body, e.err
}

const (
	minJSONCached  = 1 << 10  // bytes of resources
	maxJSONCached  = 32 << 20 // of all; the newest may be larger
	mostJSONCached = 1 << 8   // entries
)
