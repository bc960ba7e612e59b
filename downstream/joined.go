package downstream

import (
	"slices"
	"sync"
	"weak"

	"google.golang.org/grpc/mem"
)

// Responses of many resources by name. Clients that are configured alike ask for the
// same names in the same order, and when all of them come at once each is told the same:
// in one buffer that they share, as gRPC has more to do for a hundred.

// joins has what was told to more than one client of late. The zero value is ready.
type joins struct {
	mu sync.Mutex
	// told are by a hash of the resources: of nothing yet, if it was told once.
	told map[uint64]weak.Pointer[joined]
}

// joined are resources as one part of a response. It is there for as long as it is on
// its way to a client, and some time longer, until the garbage collector comes.
type joined struct {
	plainParts
	size  int // by which they were found
	delta bool
	bytes mem.SliceBuffer
}

// What is joined: of so many resources at least, of so many bytes at most for each, and
// altogether. To copy what is large is no gain. mostTold bounds what is remembered.
const (
	leastJoined = 2
	mostEach    = 4 << 10
	mostJoined  = 1 << 20
	mostTold    = 1 << 8
)

// worthJoining says whether so many resources, of so many bytes, are better in one buffer.
func worthJoining(n, size int) bool {
	return n >= leastJoined && size <= mostJoined && size <= n*mostEach
}

// join returns resources of that many bytes as one buffer, nil if that is not worth it.
func (j *joins) join(parts plainParts, delta bool, size int) mem.Buffer {
	if !worthJoining(len(parts.resources), size) {
		return nil
	}
	const prime = 0x9e3779b97f4a7c15
	hash := uint64(size)
	if delta {
		hash = ^hash
	}
	for _, r := range parts.resources {
		hash = (hash ^ r.Hash()) * prime
	}
	for _, f := range parts.forms {
		hash = (hash ^ uint64(f)) * prime
	}
	j.mu.Lock()
	before, again := j.told[hash]
	if !again {
		if j.told == nil || len(j.told) == mostTold {
			j.told = map[uint64]weak.Pointer[joined]{}
		}
		j.told[hash] = weak.Pointer[joined]{}
	}
	j.mu.Unlock()
	if !again {
		return nil
	}
	if is := before.Value(); is != nil && is.size == size && is.delta == delta && slices.Equal(is.resources, parts.resources) && slices.Equal(is.forms, parts.forms) {
		return &is.bytes
	}
	is := &joined{plainParts: plainParts{slices.Clone(parts.resources), slices.Clone(parts.forms)}, size: size, delta: delta}
	is.bytes = parts.appendTo(nil, delta).Materialize()
	j.mu.Lock()
	j.told[hash] = weak.Make(is)
	j.mu.Unlock()
	return &is.bytes
}
