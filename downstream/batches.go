package downstream

import (
	"slices"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/recent"
)

// Responses with many resources by name. Clients that are configured alike request the same names in the same order.
// When they connect at once, their responses have the same resources. The relay puts these into one shared buffer,
// because gRPC handles one buffer faster than a hundred.

// batches has the lists of resources that were recently sent to more than one client. The zero value is ready.
type batches struct {
	mu sync.Mutex
	// sent has the batches by a hash of their resources. A value is empty if the resources were sent once.
	sent   map[uint64]*recent.Value[batch]
	keeper recent.Keeper
}

// batch has resources as one part of a response. It is kept while clients are sent it, and for a short time after.
type batch struct {
	session.Parts
	size  int // of the resources, bytes
	delta bool
	bytes mem.SliceBuffer
}

// Limits of sharing. mostEach bounds the average size of the resources in a batch, because copying large resources
// gains nothing. mostBatched bounds the bytes of a batch, and mostRemembered the number of batches that the relay
// remembers.
const (
	mostEach       = 4 << 10
	mostBatched    = 1 << 20
	mostRemembered = 1 << 8
)

// worthBatching reports whether so many resources, of so many bytes, are better in one buffer.
func worthBatching(n, size int) bool {
	return n >= leastShared && size <= mostBatched && size <= n*mostEach
}

// Join returns resources of that many bytes as one buffer, nil if that is not worth it.
func (j *batches) Join(parts session.Parts, delta bool, size int) mem.Buffer {
	if !worthBatching(len(parts.Resources), size) {
		return nil
	}
	const prime = 0x9e3779b97f4a7c15
	hash := uint64(size)
	if delta {
		hash = ^hash
	}
	for _, r := range parts.Resources {
		hash = (hash ^ r.Hash()) * prime
	}
	for _, f := range parts.Forms {
		hash = (hash ^ uint64(f)) * prime
	}
	is, again := j.get(hash)
	if !again {
		return nil
	}
	if is != nil && is.size == size && is.delta == delta && slices.Equal(is.Resources, parts.Resources) && slices.Equal(is.Forms, parts.Forms) {
		return &is.bytes
	}
	is = &batch{Parts: session.Parts{Resources: slices.Clone(parts.Resources), Forms: slices.Clone(parts.Forms)}, size: size, delta: delta}
	is.bytes = parts.AppendTo(nil, delta).Materialize()
	j.set(hash, is)
	return &is.bytes
}

// get returns the batch with that hash, nil if there is none any more. again is false if no such resources were sent
// lately.
func (j *batches) get(hash uint64) (is *batch, again bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := j.sent[hash]
	if v != nil {
		return v.Get(), true
	}
	if j.sent == nil || len(j.sent) == mostRemembered {
		j.sent = map[uint64]*recent.Value[batch]{}
		j.keeper.Forget(j)
	}
	j.sent[hash] = &recent.Value[batch]{}
	return nil, false
}

func (j *batches) set(hash uint64, is *batch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if v := j.sent[hash]; v != nil {
		v.Set(&j.keeper, j, is, is.size)
	}
}

// DropUnused implements recent.Owner.
func (j *batches) DropUnused() (left int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, v := range j.sent {
		left += v.DropUnused()
	}
	return left
}
