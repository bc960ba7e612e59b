package downstream

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// Two Nodes are the same if protobuf says so.
func TestNodesAreComparedAsProtobufDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawNode(t, "a"), drawNode(t, "b")
		if same, changes := proto.Equal(a, b), nodeChanges(a, b); same != (changes == nil) {
			t.Fatalf("changes of\n%v\n%v\nare %q, and protobuf says %v", a, b, changes, same)
		}
		x, y := drawValue(t, "x", 2), drawValue(t, "y", 2)
		if same := proto.Equal(x, y); same != equalValues(x, y) {
			t.Fatalf("protobuf says of %v and %v: %v", x, y, same)
		}
		if changes := nodeChanges(a, proto.CloneOf(a)); changes != nil {
			t.Fatalf("changes of the same: %q", changes)
		}
	})
}

func TestMetadataThatIsEmptyIsThere(t *testing.T) {
	none, empty := &corev3.Node{}, &corev3.Node{Metadata: &structpb.Struct{}}
	if nodeChanges(none, empty) == nil || nodeChanges(empty, none) == nil || nodeChanges(empty, empty) != nil {
		t.Error("protobuf says otherwise")
	}
}

// drawNode draws one of not too many.
func drawNode(t *rapid.T, label string) *corev3.Node {
	text := rapid.SampledFrom([]string{"", "x"})
	some := rapid.IntRange(0, 4)
	n := &corev3.Node{Id: text.Draw(t, label+" id"), Cluster: text.Draw(t, label+" cluster")}
	if some.Draw(t, label+" metadata") == 0 {
		n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"key": drawValue(t, label, 2)}}
	}
	if some.Draw(t, label+" locality") == 0 {
		n.Locality = &corev3.Locality{Zone: text.Draw(t, label+" zone")}
	}
	if some.Draw(t, label+" extension") == 0 {
		e := &corev3.Extension{Name: text.Draw(t, label+" name"), Disabled: rapid.Bool().Draw(t, label+" disabled")}
		if rapid.Bool().Draw(t, label+" version") {
			e.Version = &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: uint32(some.Draw(t, label+" major"))}}
		}
		n.Extensions = append(n.Extensions, e)
	}
	if some.Draw(t, label+" feature") == 0 {
		n.ClientFeatures = []string{text.Draw(t, label+" feature")}
	}
	return n
}

func drawValue(t *rapid.T, label string, depth int) *structpb.Value {
	kinds := 5
	if depth == 0 {
		kinds = 3
	}
	switch rapid.IntRange(0, kinds).Draw(t, label+" kind") {
	case 0:
		return structpb.NewStringValue(rapid.SampledFrom([]string{"", "x"}).Draw(t, label+" text"))
	case 1:
		return structpb.NewNumberValue(rapid.SampledFrom([]float64{0, 1}).Draw(t, label+" number"))
	case 2:
		return structpb.NewNullValue()
	case 3:
		return &structpb.Value{}
	case 4:
		return structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{drawValue(t, label, depth-1)}})
	default:
		return structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"key": drawValue(t, label, depth-1)}})
	}
}

// Clients send their Node with every ACK, and proxies' are large.
func BenchmarkSameNodeAgain(b *testing.B) {
	n := &corev3.Node{Id: "proxy-1", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{}}}
	for i := range 40 {
		n.Metadata.Fields[fmt.Sprint("key ", i)] = structpb.NewStringValue(fmt.Sprint("value ", i))
	}
	for i := range 200 {
		n.Extensions = append(n.Extensions, &corev3.Extension{Name: fmt.Sprint("envoy.filters.", i), TypeUrls: []string{"example"}})
	}
	st, again := &stream{node: n}, proto.CloneOf(n)
	b.ReportAllocs()
	for b.Loop() {
		if err := st.checkNode(again); err != nil {
			b.Fatal(err)
		}
	}
}
