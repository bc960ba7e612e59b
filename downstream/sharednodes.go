package downstream

import (
	"bytes"
	"sync"
	"sync/atomic"
	"unicode/utf8"
	"weak"

	"github.com/cespare/xxhash/v2"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/wire"
)

// Nodes that clients share. The Nodes of clients that are configured alike differ only in their ids. The Node of an
// Envoy with all of its extensions has thousands of values. So from the second such client on, the relay finds the rest
// of the Node by its bytes, and neither decodes nor stores it again. Nothing changes a client's Node.

// sharedNodes are the Nodes that clients have sent recently. The zero value is ready.
type sharedNodes struct {
	mu sync.Mutex
	// known has each Node by a hash of its bytes without the id. The pointer is nil for one that was sent once. A Node
	// exists while a client has it.
	known map[uint64]weak.Pointer[nodeRest]
}

// mostNodes bounds what is remembered. When it is exceeded, the memory is cleared.
const mostNodes = 1 << 10

// nodeRest is a Node without its id.
type nodeRest struct {
	encoded []byte
	node    *corev3.Node
	// newest is the Node with the id of the newest client: the streams of one client share one Node.
	newest atomic.Pointer[sharedNode]
}

// sharedNode is a client's Node.
type sharedNode struct {
	corev3.Node
	rest *nodeRest // keeps the rest alive as long as the Node
}

// find returns the Node with that encoding. It returns nil if no client has sent the same Node, apart from the id, or
// if the Node cannot be decoded. isAllowed reports whether it may be decoded.
func (s *sharedNodes) find(node []byte, isAllowed func() bool) *corev3.Node {
	id, before, after, ok := splitNode(node)
	if !ok {
		return nil
	}
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(before)
	_, _ = d.Write(after)
	hash := d.Sum64()
	s.mu.Lock()
	known, again := s.known[hash]
	if !again {
		if s.known == nil || len(s.known) == mostNodes {
			s.known = map[uint64]weak.Pointer[nodeRest]{}
		}
		s.known[hash] = weak.Pointer[nodeRest]{}
	}
	s.mu.Unlock()
	if !again {
		return nil
	}
	if rest := known.Value(); rest != nil {
		if len(rest.encoded) != len(before)+len(after) || !bytes.HasPrefix(rest.encoded, before) || !bytes.HasSuffix(rest.encoded, after) {
			return nil
		}
		return rest.with(id)
	}
	if !isAllowed() {
		return nil
	}
	rest := &nodeRest{encoded: bytes.Join([][]byte{before, after}, nil), node: new(corev3.Node)}
	if proto.Unmarshal(rest.encoded, rest.node) != nil {
		return nil
	}
	s.mu.Lock()
	s.known[hash] = weak.Make(rest)
	s.mu.Unlock()
	return rest.with(id)
}

// splitNode returns the id in an encoded Node, and what is before and after it. ok is false if there are several ids,
// or the Node cannot be read.
func splitNode(node []byte) (id, before, after []byte, ok bool) {
	const fieldID = 1
	before = node
	for at := 0; at < len(node); {
		num, value, size := wire.NextBytes(node[at:])
		if size == 0 {
			return nil, nil, nil, false // Nodes without deprecated fields have only fields of this kind
		}
		if num == fieldID {
			if id != nil || !utf8.Valid(value) {
				return nil, nil, nil, false
			}
			id, before, after = value, node[:at], node[at+size:]
		}
		at += size
	}
	return id, before, after, true
}

// with returns the Node with an id.
func (r *nodeRest) with(id []byte) *corev3.Node {
	if n := r.newest.Load(); n != nil && n.GetId() == string(id) {
		return &n.Node
	}
	n := &sharedNode{rest: r}
	n.Id = string(id)
	of := r.node
	n.Cluster, n.Metadata, n.DynamicParameters, n.Locality = of.Cluster, of.Metadata, of.DynamicParameters, of.Locality
	n.UserAgentName, n.UserAgentVersionType, n.Extensions = of.UserAgentName, of.UserAgentVersionType, of.Extensions
	n.ClientFeatures = of.ClientFeatures
	n.ListeningAddresses = of.ListeningAddresses //nolint:staticcheck // deprecated, and still sent by clients
	if unknown := of.ProtoReflect().GetUnknown(); len(unknown) > 0 {
		n.ProtoReflect().SetUnknown(unknown)
	}
	r.newest.Store(n)
	return &n.Node
}
