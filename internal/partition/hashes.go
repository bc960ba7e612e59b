package partition

// The relay compares the Nodes of a partition's clients by hashes of the fields that control planes commonly read, so
// it need not keep the Nodes.

import (
	"github.com/cespare/xxhash/v2"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
)

// hashedFields are the fields that are compared. The id is not one of them: the clients of a partition are expected
// to have different ids.
var hashedFields = [...]string{"cluster", "locality", "metadata", "dynamic_parameters"}

// Hashes are hashes of the hashedFields of a Node. The hash of an absent field is 0.
type Hashes [len(hashedFields)]uint64

// Fields is a set of hashedFields, with a bit for each.
type Fields uint8

// HashesOf returns the hashes of a Node, in the order of hashedFields. It costs about as much as encoding the fields
// that are present: thousands of clients may connect at once.
func HashesOf(node *corev3.Node) (h Hashes) {
	if cluster := node.GetCluster(); cluster != "" {
		h[0] = xxhash.Sum64String(cluster)
	}
	if locality := node.GetLocality(); locality != nil {
		h[1] = hashOf(&corev3.Node{Locality: locality})
	}
	if metadata := node.GetMetadata(); metadata != nil {
		h[2] = hashOf(&corev3.Node{Metadata: metadata})
	}
	if parameters := node.GetDynamicParameters(); len(parameters) > 0 {
		h[3] = hashOf(&corev3.Node{DynamicParameters: parameters})
	}
	return h
}

func hashOf(part *corev3.Node) uint64 {
	// Hashes are compared within one process only, so Deterministic suffices. The Node was decoded from a message, so
	// encoding it does not fail.
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(part)
	return xxhash.Sum64(encoded)
}

// differ returns the fields that differ between two Nodes.
func (h Hashes) differ(o Hashes) (in Fields) {
	for i := range h {
		if h[i] != o[i] {
			in |= 1 << i
		}
	}
	return in
}

// Names returns the names of the fields.
func (s Fields) Names() (names []string) {
	for i, name := range hashedFields {
		if s&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}
