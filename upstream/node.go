package upstream

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/wire"
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
		poll.Node, c.announced = s.node, true
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

// A control plane may refuse the Node, which is that of one client of several. Then the next stream has that of another
// client, before anything else on the stream is blamed. But the Node may be innocent. So with maxInnocent Nodes refused
// in a row, the rest is blamed first.

// Nodes has the Node of a scope's streams. It is safe for concurrent use, and calls nothing of a stream but what Watch
// was given.
type Nodes interface {
	// Current returns the Node for the next stream. It must not be changed.
	Current() *corev3.Node
	// Answered notes that a stream with this Node has its first response, and Lost that such a stream has ended.
	Answered(node *corev3.Node)
	Lost(node *corev3.Node)
	// Refused notes that the control plane has ended a stream, perhaps because of this Node, and whether it had answered
	// on it. Refused returns whether the next stream has another Node.
	Refused(node *corev3.Node, answered bool) (changed bool)
	// Watch calls f when a Node that was not tried, or one that was answered, is in the place of a refused one, until
	// stop is called. f must not block.
	Watch(f func()) (stop func())
}

const (
	// maxInnocent is how many Nodes in a row may be blamed for the ends of streams before anything else is.
	maxInnocent = 2
	// mostHurried is how many Nodes in a row are tried every nodePace at least. After that, the backoff holds.
	mostHurried = 8
	nodePace    = 2 * time.Second
)

// refusesNode reports whether a control plane may have ended a stream because of its Node.
func refusesNode(err error) bool {
	switch code, _ := codeOf(err); code {
	case codes.NotFound, codes.PermissionDenied, codes.InvalidArgument, codes.Unauthenticated:
		return true
	default:
		return false
	}
}

// watchNodes lets the stream be opened soon if there is a Node in place of a refused one.
func (s *Stream) watchNodes() (stop func()) {
	if s.opts.Nodes == nil {
		return func() {}
	}
	return s.opts.Nodes.Watch(func() { s.inbox.Put(note{renode: true}) })
}

// takeNode sets the Node of the next gRPC stream. Only the stream's goroutine calls it.
func (s *Stream) takeNode() {
	if s.opts.Nodes == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if node := s.opts.Nodes.Current(); node != s.node {
		s.limit += proto.Size(s.node) - proto.Size(node)
		s.node = node
	}
}

// renode gets another Node if the control plane may have ended a stream because of its Node. The caller holds mu.
func (s *Stream) renode(c *call) (changed bool) {
	if s.opts.Nodes == nil || c.err == nil || s.ctx.Err() != nil || !c.announced || !refusesNode(c.err) ||
		!s.opts.Nodes.Refused(s.node, c.responded) {
		return false
	}
	s.renoded++
	if log, ok := s.nodeLines.Next(s.own); ok {
		log.Warn("control plane has ended a stream, perhaps because of the Node: the next stream has that of another client of the partition",
			"node", s.node.GetId(), "instead", s.opts.Nodes.Current().GetId(), "reason", Reason(c.err))
	}
	return true
}

// renodeSoon lets the next gRPC stream be opened soon: it has a Node that may be accepted. The caller holds mu.
func (s *Stream) renodeSoon() {
	s.renoded = min(s.renoded, maxInnocent)
	if s.live {
		return
	}
	if soon := s.endedAt.Add(nodePace); s.retryAt.After(soon) {
		s.retryAt = soon
	}
	s.forgetFailure()
}
