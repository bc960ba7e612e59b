package relay

// Whether clients that share a partition have the same Node, told without keeping their
// Nodes: by hashes of the fields that control planes commonly read.

import (
	"github.com/cespare/xxhash/v2"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
)

// markedFields are the fields that are looked at. The id is not among them: the clients of
// a partition are expected to differ in that.
var markedFields = [...]string{"cluster", "locality", "metadata", "dynamic_parameters"}

// nodeMarks are hashes of the marked fields of a Node.
type nodeMarks [len(markedFields)]uint64

// markSet are some of the marked fields, a bit each.
type markSet uint8

// marksOf costs about as much as to encode the Node: nothing for what is not there, as
// thousands of clients come at once. The order is that of markedFields.
func marksOf(node *corev3.Node) (m nodeMarks) {
	if cluster := node.GetCluster(); cluster != "" { // of what is not there it is 0
		m[0] = xxhash.Sum64String(cluster)
	}
	if locality := node.GetLocality(); locality != nil {
		m[1] = markOf(&corev3.Node{Locality: locality})
	}
	if metadata := node.GetMetadata(); metadata != nil {
		m[2] = markOf(&corev3.Node{Metadata: metadata})
	}
	if parameters := node.GetDynamicParameters(); len(parameters) > 0 {
		m[3] = markOf(&corev3.Node{DynamicParameters: parameters})
	}
	return m
}

func markOf(part *corev3.Node) uint64 {
	// Deterministic is enough, as hashes are compared within one process only. The Node was
	// decoded, so that it can be encoded.
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(part)
	return xxhash.Sum64(encoded)
}

func (m nodeMarks) differ(o nodeMarks) (in markSet) {
	for i := range m {
		if m[i] != o[i] {
			in |= 1 << i
		}
	}
	return in
}

// fields returns their names.
func (s markSet) fields() (names []string) {
	for i, name := range markedFields {
		if s&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}
