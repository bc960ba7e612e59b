package members

import (
	"strings"

	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache/resource"
)

// EncodedChunk has members that follow each other in the order of their changes, encoded in
// the delta form that all clients understand. New subscribers of a set share it.
type EncodedChunk struct {
	Resources []*resource.Resource
	// Names are copies of the first few of the resources' names, to be stored for longer.
	Names []string
	// HoldsSecret: there is a secret in one of the resources.
	HoldsSecret bool
	delta       mem.SliceBuffer
}

// namesPerChunk is the number of names in EncodedChunk.Names.
const namesPerChunk = 16

// Delta returns a DeltaDiscoveryResponse with nothing but the resources. It keeps the chunk
// alive.
func (e *EncodedChunk) Delta() mem.Buffer { return &e.delta }

// newEncodedChunk makes a chunk for so many resources, of that many bytes.
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
	e.delta = append(e.delta, r.Encoded(true)...)
	if len(e.Names) < namesPerChunk {
		e.Names = append(e.Names, strings.Clone(r.Name()))
	}
}
