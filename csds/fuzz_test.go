package csds

import (
	"context"
	"errors"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// matchersToTest are node_matchers in JSON.
var matchersToTest = []string{
	``,
	`{}`,
	`{"nodeId": {"exact": "Edge-1", "ignoreCase": true}}, {"nodeId": {"suffix": "-2"}}`,
	`{"nodeId": {"safeRegex": {"regex": "edge-[0-9]{1,100}"}}}`,
	`{"nodeMetadatas": [{"path": [{"key": "deep"}, {"key": "er"}], "value": {"stringMatch": {"contains": "er"}}}]}`,
	`{"nodeMetadatas": [{"path": [{"key": "n"}], "value": {"doubleMatch": {"range": {"start": 3, "end": 4}}}}]}`,
	`{"nodeMetadatas": [{"path": [{"key": "list"}], "value": {"listMatch": {"oneOf": {"presentMatch": true}}}}]}`,
	`{"nodeMetadatas": [{"path": [{"key": "on"}], "value": {"orMatch": {"valueMatchers": [{"nullMatch": {}}, {"boolMatch": true}]}}}]}`,
}

// FuzzRequest sends any request, of a client that may see the relay's own view, and matches a Node. The request is
// answered or refused as invalid, the whole view is in the answer, and a Node matches the matchers if it matches one of
// them, also after the request was printed and read again.
func FuzzRequest(f *testing.F) {
	for _, matchers := range matchersToTest {
		req := new(statusv3.ClientStatusRequest)
		if err := protojson.Unmarshal([]byte(`{"excludeResourceContents": true, "nodeMatchers": [`+matchers+`]}`), req); err != nil {
			f.Fatal(err)
		}
		text, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	metadata, err := structpb.NewStruct(map[string]any{"n": 3, "on": true, "list": []any{"x", nil}, "deep": map[string]any{"er": "here"}})
	if err != nil {
		f.Fatal(err)
	}
	node := &corev3.Node{Id: "edge-1", Metadata: metadata}
	cluster := resource(f, xdstype.ClusterV3, "c", &clusterv3.Cluster{Name: "c"})
	held := holder{3, func(int) downstream.Held { return acked(cluster, "c") }}
	service := New(func() *corev3.Node { return node }, func(context.Context) (Viewer, error) { return held, nil })
	f.Fuzz(func(t *testing.T, text []byte) {
		req := new(statusv3.ClientStatusRequest)
		if proto.Unmarshal(text, req) != nil {
			return
		}
		matches, err := matcherOf(req.GetNodeMatchers())
		answer, refused := service.FetchClientStatus(t.Context(), req)
		if (err != nil) != (refused != nil) || refused != nil && status.Code(refused) != codes.InvalidArgument {
			t.Fatalf("%v has bad matchers: %v; it is answered with %v", req, err, refused)
		}
		if err != nil {
			if _, again := matcherOf(req.GetNodeMatchers()); again.Error() != err.Error() {
				t.Fatalf("%v is refused for %v, and then for %v", req, err, again)
			}
			return
		}
		if matches == nil {
			resources := answer.GetConfig()[0].GetGenericXdsConfigs()
			if len(resources) != held.n || (resources[0].GetXdsConfig() == nil) != req.GetExcludeResourceContents() {
				t.Fatalf("%v is answered with %v", req, answer)
			}
			return
		}
		one := false
		for i := range req.GetNodeMatchers() {
			of, err := matcherOf(req.GetNodeMatchers()[i:][:1])
			if err != nil {
				t.Fatalf("%v is valid, and a part is not: %v", req, err)
			}
			one = one || of(node)
		}
		if got := matches(node); got != one {
			t.Fatalf("%v matches: %t, and one of its matchers: %t", req, got, one)
		}
		printed, err := protojson.Marshal(req)
		if err != nil {
			return // an extension that is not known
		}
		again := new(statusv3.ClientStatusRequest)
		if err := protojson.Unmarshal(printed, again); err != nil {
			t.Fatal(err)
		}
		if matches, err := matcherOf(again.GetNodeMatchers()); err != nil || matches(node) != one {
			t.Fatalf("%s matches otherwise than before it was printed (%v)", printed, err)
		}
	})
}

// A caller that may not use the service is refused before its request costs anything.
func TestMatchersAreReadForCallersThatMaySeeSomething(t *testing.T) {
	denied := errors.New("denied")
	service := New(nil, func(context.Context) (Viewer, error) { return nil, denied })
	req := new(statusv3.ClientStatusRequest)
	if err := protojson.Unmarshal([]byte(`{"nodeMatchers": [{"nodeId": {"safeRegex": {"regex": "("}}}]}`), req); err != nil {
		t.Fatal(err)
	}
	if _, err := service.FetchClientStatus(t.Context(), req); !errors.Is(err, denied) {
		t.Errorf("got %v, want %v", err, denied)
	}
}
