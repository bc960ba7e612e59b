package upstream

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/wire"
)

// xDS: "Only the first request on a stream is guaranteed to carry the node identifier." Not every control plane
// remembers it: java-control-plane reads the Node of each request, and Envoy sends it with each one by default. A Node
// may have kilobytes, and a stream's requests many times that together. So a stream encodes it once, and its requests
// share the bytes.

// nodedRequest is a request, and the Node that goes with it.
type nodedRequest struct {
	request proto.Message
	node    []byte // the field of the request, encoded; requests share it
}

// withNode returns a request as the stream has to send it.
func (s *Stream) withNode(c *call, m proto.Message) (any, error) {
	if poll, ok := m.(*discoveryv3.DiscoveryRequest); ok && c.form.name == REST {
		poll.Node = s.node
		return poll, nil
	}
	if s.node == nil || c.announced && s.opts.NodeOnce {
		return m, nil
	}
	c.announced = true
	if c.node != nil {
		return &nodedRequest{m, c.node}, nil
	}
	node, err := encodeNode(m, s.node)
	if !s.opts.NodeOnce {
		c.node = node
	}
	return &nodedRequest{m, node}, err
}

// encodeNode returns the field with the Node of a request of m's type.
func encodeNode(m proto.Message, node *corev3.Node) ([]byte, error) {
	number := wire.SotWRequest.Node
	if _, delta := m.(*discoveryv3.DeltaDiscoveryRequest); delta {
		number = wire.DeltaRequest.Node
	}
	b, err := proto.Marshal(node)
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), b), err
}
