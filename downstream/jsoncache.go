package downstream

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

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
	own       bool // it is for one client, and not in the cache
	render    func() ([]byte, error)
	once      sync.Once
	body      []byte
	err       error

	mu      sync.Mutex
	readers map[*jsonReader]struct{}
	place   *Place // nil without readers
}

// jsonReader is a client that is sent a response.
type jsonReader struct {
	conn  io.Closer
	since time.Time
}

// Answers in JSON take memory while they are made, and until the client has read them. So they take places, of which each
// is a byte of a resource; and a client that does not read loses its connection when others have waited for their places.
const (
	// answersPart is the part of the memory that answers may take.
	answersPart = 1. / 5
	// answerCopies is how many times its resources an answer takes in memory: encoded, decoded, and in the text while it
	// grows.
	answerCopies = 8
	// smallAnswer is what a response takes, at most, that needs no place: hardly more than its connection.
	smallAnswer = 4 << 10
	// answerPatience is how long a client may read while others wait.
	answerPatience = 10 * time.Second
)

// mostAnswers is how many bytes of resources may be answered in JSON at once, 0 for any number.
func (p *pressure) mostAnswers() int64 {
	if p.memory == nil {
		return 0
	}
	_, _, limit := p.memory.Needed()
	return int64(float64(limit) * answersPart / answerCopies)
}

// mostCached is how many bytes of resources the cache of JSON may have.
func (p *pressure) mostCached() int {
	if most := p.mostAnswers(); most > 0 {
		return int(min(most, maxJSONCached))
	}
	return maxJSONCached
}

// answerPlaces are for the answers in JSON.
func (s *Server) answerPlaces() *Places {
	return &Places{most: s.pressure.mostAnswers, patience: answerPatience}
}

// join waits until there is room for the response, and keeps it until the client leaves. The first client of a response
// waits for all. A response of one client that never has room is refused, because the client has made it so large.
func (e *jsonEntry) join(ctx context.Context, p *Places, of party, conn io.Closer) (leave func(), err error) {
	if most := p.most(); e.own && most > 0 && int64(e.key.size) > most {
		return nil, status.Errorf(codes.ResourceExhausted, "the answer has %d bytes of resources, and in JSON there is memory for %d: request fewer at once, or over gRPC", e.key.size, most)
	}
	if e.key.size <= smallAnswer {
		return func() {}, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.readers) == 0 {
		if e.place, err = p.takeSize(ctx, of, int64(e.key.size), e.evict); err != nil {
			return nil, err
		}
		e.readers = map[*jsonReader]struct{}{}
	}
	r := &jsonReader{conn, time.Now()}
	e.readers[r] = struct{}{}
	return func() { e.leave(r) }, nil
}

func (e *jsonEntry) leave(r *jsonReader) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if delete(e.readers, r); len(e.readers) == 0 {
		e.place.Give()
		e.place = nil
	}
}

// evict closes the connections of those who have read for too long.
func (e *jsonEntry) evict(error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for r := range e.readers {
		if time.Since(r.since) >= answerPatience {
			_ = r.conn.Close()
		}
	}
}

func (c *jsonCache) entry(key jsonKey, resources mem.Buffer, render func() ([]byte, error), most int) *jsonEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &jsonEntry{key: key, resources: resources, render: render}
	if i := slices.IndexFunc(c.entries, func(e *jsonEntry) bool { return e.key == key }); i >= 0 {
		e = c.entries[i]
		c.entries = slices.Delete(c.entries, i, i+1)
	} else {
		c.size += key.size
	}
	c.entries = append(c.entries, e)
	for (c.size > most || len(c.entries) > mostJSONCached) && len(c.entries) > 1 {
		c.size -= c.entries[0].key.size
		c.entries = slices.Delete(c.entries, 0, 1)
	}
	return e
}

// get returns the JSON, which nobody may change. The first call renders it.
func (e *jsonEntry) get() ([]byte, error) {
	e.once.Do(func() {
		e.body, e.err = e.render()
		e.render = nil
	})
	return e.body, e.err
}

const (
	minJSONCached  = 1 << 10  // bytes of resources
	maxJSONCached  = 32 << 20 // of all; the newest may be larger
	mostJSONCached = 1 << 8   // entries
)
