package downstream

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

// checkNode checks the Node of a request that is not the first. xDS: "only the first request on a stream is guaranteed
// to carry the node identifier". Many clients send it every time. The first Node has decided what the client may see,
// so a different one is refused: the client reconnects with it on a new stream.
func (st *stream) checkNode(node *corev3.Node) error {
	if node == nil || node == st.node {
		return nil
	}
	changes := nodeChanges(st.node, node)
	if changes == nil || proto.Size(node) == 0 {
		return nil
	}
	return status.Errorf(codes.InvalidArgument, "the node is not that of the stream's first request: %s", strings.Join(changes, ", "))
}

// nodeChanges returns the fields in which two Nodes differ. It shows values only of the fields that name the client:
// others may hold what must not be logged.
func nodeChanges(was, is *corev3.Node) (changes []string) {
	a, b := was.ProtoReflect(), is.ProtoReflect()
	for i := range a.Descriptor().Fields().Len() {
		field := a.Descriptor().Fields().Get(i)
		var same bool
		about := ""
		switch field.Name() {
		case "id":
			if same = was.GetId() == is.GetId(); !same {
				about = fmt.Sprintf("id was %q and is %q", shown(was.GetId()), shown(is.GetId()))
			}
		case "cluster":
			if same = was.GetCluster() == is.GetCluster(); !same {
				about = fmt.Sprintf("cluster was %q and is %q", shown(was.GetCluster()), shown(is.GetCluster()))
			}
		case "metadata":
			same = equalStructs(was.GetMetadata(), is.GetMetadata())
		case "extensions":
			same = slices.EqualFunc(was.GetExtensions(), is.GetExtensions(), equalExtensions)
		default:
			same = a.Has(field) == b.Has(field) && (!a.Has(field) || a.Get(field).Equal(b.Get(field)))
		}
		if !same {
			changes = append(changes, cmp.Or(about, string(field.Name())+" differs"))
		}
	}
	return changes
}

// shown clips a part of a Node for an error that ends a stream: gRPC sends its text in a header, and clients do not
// read long headers.
func shown(s string) string { return loglines.ClipTo(s, 256) }

// The large parts of a Node are compared without reflection, which takes longer than decoding them: many clients send
// their Node with every ACK. The encoded form cannot be compared, because the order of a map's entries is undefined.

func equalExtensions(a, b *corev3.Extension) bool {
	return a.GetName() == b.GetName() && a.GetCategory() == b.GetCategory() && a.GetDisabled() == b.GetDisabled() &&
		slices.Equal(a.GetTypeUrls(), b.GetTypeUrls()) &&
		(a.GetVersion() == b.GetVersion() || proto.Equal(a.GetVersion(), b.GetVersion()))
}

func equalStructs(a, b *structpb.Struct) bool {
	return (a == nil) == (b == nil) && maps.EqualFunc(a.GetFields(), b.GetFields(), equalValues)
}

func equalValues(a, b *structpb.Value) bool {
	switch x := a.GetKind().(type) {
	case *structpb.Value_StringValue:
		y, ok := b.GetKind().(*structpb.Value_StringValue)
		return ok && x.StringValue == y.StringValue
	case *structpb.Value_StructValue:
		y, ok := b.GetKind().(*structpb.Value_StructValue)
		return ok && equalStructs(x.StructValue, y.StructValue)
	case *structpb.Value_ListValue:
		y, ok := b.GetKind().(*structpb.Value_ListValue)
		return ok && slices.EqualFunc(x.ListValue.GetValues(), y.ListValue.GetValues(), equalValues)
	}
	return proto.Equal(a, b)
}
