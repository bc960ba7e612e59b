package downstream

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

// allowed allows a Node to be decoded.
func allowed() bool { return true }

// fullNode is a Node with something in each field, and one field that is not known.
func fullNode(id string) *corev3.Node {
	node := &corev3.Node{
		Id: id, UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1"},
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"k": structpb.NewStringValue("v")}},
	}
	m := node.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch field := fields.Get(i); {
		case m.Has(field) || field.ContainingOneof() != nil:
		case field.IsMap():
			m.Mutable(field).Map().Set(protoreflect.ValueOfString("k").MapKey(), m.Mutable(field).Map().NewValue())
		case field.IsList() && field.Kind() == protoreflect.StringKind:
			m.Mutable(field).List().Append(protoreflect.ValueOfString("text"))
		case field.IsList():
			m.Mutable(field).List().AppendMutable()
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString("text"))
		default:
			m.Mutable(field)
		}
	}
	m.SetUnknown([]byte{0xfa, 0x3e, 0x01, 'x'}) // field 1007
	return node
}

// Clients whose Nodes differ in their ids share all the rest, and each has the Node that it has sent.
func TestNodesShareAllButTheirIDs(t *testing.T) {
	var nodes sharedNodes
	var last *corev3.Node
	for i := range 5 {
		want := fullNode(fmt.Sprint("client ", i))
		got := nodes.find(encoded(want), allowed)
		if i == 0 {
			if got != nil {
				t.Fatal("the Node of the first client is shared")
			}
			continue
		}
		if !proto.Equal(got, want) {
			t.Fatalf("%v\nwant %v", got, want)
		}
		if last != nil && (got.GetMetadata() != last.GetMetadata() || unsafe.SliceData(got.GetClientFeatures()) != unsafe.SliceData(last.GetClientFeatures())) {
			t.Error("the Nodes share nothing")
		}
		if again := nodes.find(encoded(want), allowed); again != got {
			t.Error("the Node of one client's streams is there twice")
		}
		last = got
	}
	without := fullNode("")
	if got := nodes.find(encoded(without), allowed); !proto.Equal(got, without) {
		t.Errorf("%v, want %v", got, without)
	}
}

// What is shared is there as long as a client has it, and no longer.
func TestASharedNodeGoesWithTheClients(t *testing.T) {
	var nodes sharedNodes
	data := encoded(fullNode("a"))
	nodes.find(data, allowed)
	node := nodes.find(data, allowed)
	runtime.GC()
	if again := nodes.find(data, allowed); again != node {
		t.Error("a Node that a client has is decoded again")
	}
	runtime.KeepAlive(node)
	node = nil
	runtime.GC()
	runtime.GC()
	for _, rest := range nodes.known {
		if rest.Value() != nil {
			t.Error("a Node is there that no client has")
		}
	}
	_ = node
}

func TestNodesThatAreNotShared(t *testing.T) {
	twoIDs := append(encoded(&corev3.Node{Id: "a"}), encoded(&corev3.Node{Id: "b", Cluster: "c"})...)
	for name, test := range map[string]struct {
		data    []byte
		allowed bool
	}{
		"over the limits":    {encoded(fullNode("a")), false},
		"with two ids":       {twoIDs, true},
		"not UTF-8":          {[]byte{0x0a, 0x01, 0xff}, true},
		"cut":                {encoded(fullNode("a"))[:10], true},
		"not to be decoded":  {[]byte{0x12, 0x01, 0xff}, true},
		"with another field": {[]byte{0x08, 0x01}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var nodes sharedNodes
			for range 3 {
				if got := nodes.find(test.data, func() bool { return test.allowed }); got != nil {
					t.Errorf("%v is shared", got)
				}
			}
		})
	}
}

func TestSharedNodesAreBounded(t *testing.T) {
	var nodes sharedNodes
	for i := range 2*mostNodes + 1 {
		nodes.find(encoded(&corev3.Node{Cluster: fmt.Sprint(i)}), allowed)
		if len(nodes.known) > mostNodes {
			t.Fatalf("%d are remembered", len(nodes.known))
		}
	}
}
