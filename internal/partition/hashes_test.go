package partition

import (
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestNodesAreComparedByContent(t *testing.T) {
	node := func(order ...string) *corev3.Node {
		n := &corev3.Node{Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{}}}
		for _, key := range order {
			n.Metadata.Fields[key] = structpb.NewStringValue("of " + key)
		}
		return n
	}
	keys := strings.Split("a b c d e f g h i j k l m", " ")
	is := HashesOf(node(keys...))
	for range 20 {
		if HashesOf(node(keys...)) != is {
			t.Fatal("the same metadata has two hashes")
		}
	}
	if got := is.differ(HashesOf(node(keys[1:]...))).Names(); !slices.Equal(got, []string{"metadata"}) {
		t.Errorf("a key less is a difference in %q", got)
	}
	if is.differ(HashesOf(nil)) == 0 {
		t.Error("no Node is the same as one")
	}
}
