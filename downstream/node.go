package downstream

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// checkNode takes the Node of a request that is not the first. xDS: "only the
// first request on a stream is guaranteed to carry the node identifier". Many
// clients send it every time. What a client may see has been settled by the
// first, so that another one is refused: the client comes back with it on a new
// stream.
func (st *stream) checkNode(node *corev3.Node) error {
	if node == nil || proto.Equal(st.node, node) || proto.Size(node) == 0 {
		return nil
	}
	return status.Errorf(codes.InvalidArgument, "the node is not that of the stream's first request: %s", strings.Join(nodeChanges(st.node, node), ", "))
}

// nodeChanges says in which fields two Nodes differ. Values are shown of those
// only that name the client: others may hold what is not for logs.
func nodeChanges(was, is *corev3.Node) []string {
	var changes []string
	for _, named := range []struct{ field, was, is string }{
		{"id", was.GetId(), is.GetId()},
		{"cluster", was.GetCluster(), is.GetCluster()},
	} {
		if named.was != named.is {
			changes = append(changes, fmt.Sprintf("%s was %q and is %q", named.field, clip(named.was), clip(named.is)))
		}
	}
	a, b := was.ProtoReflect(), is.ProtoReflect()
	for i := range a.Descriptor().Fields().Len() {
		field := a.Descriptor().Fields().Get(i)
		if field.Name() == "id" || field.Name() == "cluster" {
			continue
		}
		if a.Has(field) != b.Has(field) || !a.Get(field).Equal(b.Get(field)) {
			changes = append(changes, string(field.Name())+" differs")
		}
	}
	if changes == nil {
		changes = []string{"unknown fields differ"}
	}
	return changes
}
