package graph

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"github.com/xds-relay/xds-relay/internal/descriptors"
)

// FuzzReferences finds the same references in any bytes of a resource as in the message that protobuf reads from them and
// writes, and no more than are bounded.
func FuzzReferences(f *testing.F) {
	text, err := os.ReadFile("testdata/references.yaml")
	if err != nil {
		f.Fatal(err)
	}
	var cases []struct{ Resource json.RawMessage }
	if err := yaml.Unmarshal(text, &cases); err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		var resource anypb.Any
		if err := protojson.Unmarshal(c.Resource, &resource); err != nil {
			f.Fatal(err)
		}
		f.Add(resource.TypeUrl, resource.Value)
	}
	f.Fuzz(func(t *testing.T, typeURL string, value []byte) {
		found, err := References(typeURL, value)
		if len(found) > mostReferences {
			t.Fatalf("%d references", len(found))
		}
		if err != nil {
			return
		}
		message, _ := descriptors.Types{}.FindMessageByURL(typeURL)
		if message == nil {
			return
		}
		m := message.New().Interface()
		if proto.Unmarshal(value, m) != nil {
			return // an unknown field that is nested too deeply
		}
		written, err := proto.MarshalOptions{AllowPartial: true, Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := References(typeURL, written)
		if err != nil || !slices.Equal(lines(found), lines(again)) {
			t.Fatalf("%x has the references %q, and %x, which is the same message, %q (%v)", value, lines(found), written, lines(again), err)
		}
	})
}
