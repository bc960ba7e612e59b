package members

import (
	"strings"

	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache/resource"
	"github.com/xds-relay/xds-relay/internal/recent"
)

// Encoding says how chunks are encoded.
type Encoding struct {
	MaxBytes int // of a chunk; with 0 there are none
	Keeper   *recent.Keeper
	Owner    recent.Owner // of the Members
}

// EncodedChunk has consecutive members in the order of their changes, encoded in the delta form
// that all clients understand. New subscribers of a set share it.
type EncodedChunk struct {
	Resources []*resource.Resource
	// Names are copies of the names of the first few resources. They can outlive the resources.
	Names []string
	// HoldsSecret: one of the resources contains a secret.
	HoldsSecret bool
	delta       mem.SliceBuffer
}

// namesPerChunk is the number of names in EncodedChunk.Names.
const namesPerChunk = 16

// Delta returns a DeltaDiscoveryResponse with only the resources. The result keeps the chunk
// alive.
func (e *EncodedChunk) Delta() mem.Buffer { return &e.delta }

// newEncodedChunk returns a chunk with room for a number of resources, of size bytes together.
func newEncodedChunk(resources, size int) *EncodedChunk {
	return &EncodedChunk{
		Resources: make([]*resource.Resource, 0, resources),
		Names:     make([]string, 0, min(resources, namesPerChunk)),
		delta:     make([]byte, 0, size),
	}
}

func (e *EncodedChunk) add(r *resource.Resource) {
	e.Resources = append(e.Resources, r)
	e.HoldsSecret = e.HoldsSecret || r.HoldsSecret()
	e.delta = r.AppendBytes(e.delta, true)
	if len(e.Names) < namesPerChunk {
		e.Names = append(e.Names, strings.Clone(r.Name()))
	}
}
