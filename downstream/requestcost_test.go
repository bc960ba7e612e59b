package downstream

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/xds-relay/xds-relay/internal/wire"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// nested is metadata of so many levels.
func nested(levels int) *structpb.Struct {
	s := &structpb.Struct{}
	for range levels - 1 {
		s = &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewStructValue(s)}}
	}
	return s
}

// manyValues is metadata whose values take far more memory than bytes.
func manyValues(n int) *structpb.Struct {
	list := &structpb.ListValue{}
	for range n {
		list.Values = append(list.Values, &structpb.Value{})
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewListValue(list)}}
}

func TestRequestsAreLookedAtBeforeTheyAreDecoded(t *testing.T) {
	limits := Limits{Subscriptions: 1001}
	locators := func(n int) []*discoveryv3.ResourceLocator {
		return slices.Repeat([]*discoveryv3.ResourceLocator{{}}, n)
	}
	for _, tt := range []struct {
		name string
		req  *discoveryv3.DiscoveryRequest
		want string
	}{
		{"nothing", &discoveryv3.DiscoveryRequest{}, ""},
		{"the longest type URL", &discoveryv3.DiscoveryRequest{TypeUrl: strings.Repeat("t", 1024)}, ""},
		{"a longer type URL", &discoveryv3.DiscoveryRequest{TypeUrl: strings.Repeat("t", 1025)}, "a type URL of 1025 bytes, but the fixed limit type_url_bytes is 1024"},
		{"the largest node", &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: strings.Repeat("n", 256<<10-4)}}, ""},
		{"a larger node", &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: strings.Repeat("n", 256<<10-3)}}, "a node of 262145 bytes, but the fixed limit node_bytes is 262144"},
		{"as many values", &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Metadata: manyValues(16<<10 - 5)}}, ""},
		{"more values", &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Metadata: manyValues(16<<10 - 4)}}, "a node of 16385 values or more, but the fixed limit node_values is 16384"},
		{"as deep", &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Metadata: nested(100)}}, ""},
		{"too deep", &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Metadata: nested(102)}}, "values or more, but the fixed limit node_values is 16384"},
		{"as many locators", &discoveryv3.DiscoveryRequest{ResourceLocators: locators(1001)}, ""},
		{"more locators", &discoveryv3.DiscoveryRequest{ResourceLocators: locators(1002)}, "1002 locators in a request, but limits.subscriptions is 1001"},
	} {
		e := limits.overCost(wire.SotWRequest.Cost(encoded(tt.req), nodeLimits))
		if (e == nil) != (tt.want == "") || e != nil && !strings.Contains(e.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, e, tt.want)
		}
		delta := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: tt.req.GetTypeUrl(), Node: tt.req.GetNode(), ResourceLocatorsSubscribe: tt.req.GetResourceLocators()}
		if d := limits.overCost(wire.DeltaRequest.Cost(encoded(delta), nodeLimits)); fmt.Sprint(d) != fmt.Sprint(e) {
			t.Errorf("%s: got %v in delta, want %v", tt.name, d, e)
		}
	}
}

// Two Nodes in a request are merged when it is decoded, and so count together.
func TestNodesOfOneRequestCountTogether(t *testing.T) {
	half := encoded(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{ClientFeatures: []string{strings.Repeat("x", 200<<10)}}})
	if e := (Limits{}).overCost(wire.SotWRequest.Cost(append(half, half...), nodeLimits)); e == nil || e.limit != limitNodeBytes {
		t.Errorf("got %v", e)
	}
}

func TestJSONIsLookedAtBeforeItIsDecoded(t *testing.T) {
	limits := Limits{Subscriptions: 1001}
	metadata := func(json string) string { return `{"node":{"metadata":{"a":` + json + `}}}` }
	list := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("0,", n), ",") + "]" }
	for _, tt := range []struct {
		name, body, want string
	}{
		{"nothing", `{}`, ""},
		{"no JSON", `{"node":`, ""},
		{"a large node that does not end", `{"node":"` + strings.Repeat("n", 256<<10), "node_bytes"},
		{"two nodes", `{"node":{"id":"` + strings.Repeat("n", 200<<10) + `"},"node":{"id":"` + strings.Repeat("n", 200<<10) + `"}}`, "node_bytes"},
		{"a node in something else", `{"x":{"node":{"id":"` + strings.Repeat("n", 256<<10) + `"}}}`, ""},
		{"spaces", ` { "node" : { "id" : "` + strings.Repeat("n", 256<<10) + `" } } `, "node_bytes"},
		{"a large node", `{"node":{"id":"` + strings.Repeat("n", 256<<10) + `"}}`, "node_bytes"},
		{"a large node of another spelling", `{"\u006eode":{"id":"` + strings.Repeat("n", 256<<10) + `"}}`, "node_bytes"},
		{"punctuation in a text", `{"node":{"id":"` + strings.Repeat(`,\"[`, 16<<10) + `"}}`, ""},
		{"a few values", metadata(list(16000)), ""},
		{"many values", metadata(list(17000)), "node_values"},
		{"deep", metadata(strings.Repeat("[", 98) + strings.Repeat("]", 98)), ""},
		{"too deep", metadata(strings.Repeat("[", 101) + strings.Repeat("]", 101)), "node_values"},
		{"values elsewhere", `{"resourceNames":[` + strings.TrimSuffix(strings.Repeat(`"",`, 20000), ",") + `]}`, ""},
		{"error details", `{"errorDetail":{"details":[` + strings.TrimSuffix(strings.Repeat(`{},`, 20000), ",") + `]}}`, "node_values"},
		{"locators", `{"resource_locators":[` + strings.Repeat(`{"dynamicParameters":{}},`, 1001) + `{"dynamicParameters":{}}]}`, "subscriptions"},
	} {
		e, err := new(jsonRequest).read(iotest.OneByteReader(strings.NewReader(tt.body)), limits)
		if err != nil {
			t.Fatal(err)
		}
		if (e == nil) != (tt.want == "") || e != nil && e.limit.String() != tt.want {
			t.Errorf("%s: got %v, want %q", tt.name, e, tt.want)
		}
	}
}

func peekedJSON(body []byte) wire.RequestCost {
	var j jsonPeeker
	j.write(body)
	return j.RequestCost
}

// Values in JSON count as in protobuf, or as more.
func TestNoNodeIsLargerThanItLooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := &corev3.Node{
			Id:             rapid.StringN(0, 20, 40).Draw(t, "id"),
			Metadata:       manyValues(rapid.IntRange(0, 20).Draw(t, "values")),
			ClientFeatures: rapid.SliceOf(rapid.StringN(0, 10, 20)).Draw(t, "features"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "extensions") {
			node.Extensions = append(node.Extensions, &corev3.Extension{Name: "x", TypeUrls: []string{"a", "b"}})
		}
		node.Metadata.Fields["a"] = structpb.NewStringValue("b") // an unset value has no JSON
		node.Metadata.Fields["deep"] = structpb.NewStructValue(nested(rapid.IntRange(1, 5).Draw(t, "levels")))
		req := &discoveryv3.DiscoveryRequest{Node: node}
		body, err := protojson.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		messages := allocated(node.ProtoReflect())
		if n := wire.SotWRequest.Cost(encoded(req), nodeLimits).NodeValues; n < messages {
			t.Errorf("%d values are counted, there are %d messages", n, messages)
		}
		if n := peekedJSON(body).NodeValues; n < len(node.GetMetadata().GetFields()) {
			t.Errorf("%d values are counted in %s", n, body)
		}
	})
}

// The cost of decoding a request does not grow faster than its bytes.
func TestCostOfDecodingARequestIsBounded(t *testing.T) {
	details := &statuspb.Status{Message: "bad"}
	for range 1 << 20 {
		details.Details = append(details.Details, &anypb.Any{})
	}
	data := encoded(&discoveryv3.DiscoveryRequest{ErrorDetail: details})
	req := new(discoveryv3.DiscoveryRequest)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	used, err := decodeRequest(&wire.SotWRequest, data, req, new(knownNames))
	runtime.ReadMemStats(&after)
	recycleNames(used)
	if err != nil || req.GetErrorDetail().GetMessage() != "bad" || len(req.GetErrorDetail().GetDetails()) != 0 {
		t.Errorf("got %v, %v", req.GetErrorDetail().GetMessage(), err)
	}
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(2*len(data)); got > most {
		t.Errorf("a request of %d bytes costs %d, want %d at most", len(data), got, most)
	}
}

// A Node's values are counted in one walk: twice as many values are twice the work.
func TestValuesOfANodeAreCountedWithoutAllocations(t *testing.T) {
	for _, n := range []int{1000, 2000} {
		data := encoded(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Metadata: manyValues(n)}})
		if allocs := testing.AllocsPerRun(10, func() { wire.SotWRequest.Cost(data, nodeLimits) }); allocs > 0 {
			t.Errorf("%d values: %v allocations", n, allocs)
		}
	}
}

// What is counted of a request, before it is decoded, is no less than what decoding it allocates; in protobuf, in JSON, and
// for a load report.
func FuzzPeek(f *testing.F) {
	f.Add(encoded(&discoveryv3.DiscoveryRequest{TypeUrl: "t", Node: &corev3.Node{Id: "a", Metadata: manyValues(3)}}))
	f.Add(protowire.AppendTag(nil, 2, protowire.StartGroupType))
	f.Add([]byte(`{"node":{"id":"\"}}`))
	f.Add([]byte(`{"n\u006fde":{"metadata":{"a":[1,null,{"b":[]}]}},"resourceLocators":[{"dynamicParameters":{"a":"b"}},{}],"errorDetail":{"message":"no"}}`))
	f.Add(encoded(&lrsv3.LoadStatsRequest{Node: &corev3.Node{Metadata: manyValues(3)}, ClusterStats: loadOf(3).GetClusterStats()}))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := wire.SotWRequest.Cost(data, nodeLimits)
		if req := new(discoveryv3.DiscoveryRequest); proto.Unmarshal(data, req) == nil {
			if p.TypeURL < len(req.GetTypeUrl()) || p.Node < proto.Size(req.GetNode()) || p.Locators < len(req.GetResourceLocators()) ||
				min(p.NodeValues, maxNodeValues) < min(allocated(req.GetNode().ProtoReflect()), maxNodeValues) {
				t.Errorf("%+v is counted of %v", p, req)
			}
		}
		p = wire.DeltaRequest.Cost(data, nodeLimits)
		if req := new(discoveryv3.DeltaDiscoveryRequest); proto.Unmarshal(data, req) == nil {
			if p.TypeURL < len(req.GetTypeUrl()) || p.Node < proto.Size(req.GetNode()) || p.Locators < len(req.GetResourceLocatorsSubscribe()) {
				t.Errorf("%+v is counted of %v", p, req)
			}
		}
		p = peekedJSON(data)
		if req := new(discoveryv3.DiscoveryRequest); (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, req) == nil {
			// A locator may have one object or two.
			if 2*p.Locators+1 < len(req.GetResourceLocators()) || p.NodeValues < allocated(req.GetNode().ProtoReflect()) {
				t.Errorf("%+v is counted of %v", p, req)
			}
		}
		parts := wire.Values(data, loadRequestFields, maxLoadParts)
		if r := new(lrsv3.LoadStatsRequest); proto.Unmarshal(data, r) == nil && parts < min(allocated(r.ProtoReflect()), maxLoadParts) {
			t.Errorf("%d parts are counted of %v", parts, r)
		}
	})
}

// FuzzDecode decodes a request as the protobuf library does, except the details of an error, which it leaves out.
func FuzzDecode(f *testing.F) {
	status := &statuspb.Status{Code: 3, Message: "no", Details: []*anypb.Any{{TypeUrl: "t"}}}
	f.Add(encoded(&discoveryv3.DiscoveryRequest{TypeUrl: "t", ResourceNames: []string{"a", "b", "a"}, Node: &corev3.Node{Id: "n"}, ErrorDetail: status}))
	f.Add(encoded(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: "t", ResourceNamesSubscribe: []string{"a"}, ResourceNamesUnsubscribe: []string{"", "b"}, InitialResourceVersions: map[string]string{"a": "1"},
		ResourceLocatorsSubscribe: []*discoveryv3.ResourceLocator{{Name: "l"}}, ErrorDetail: status,
	}))
	var known knownNames
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, form := range []struct {
			fields    *wire.RequestFields
			got, want interface {
				proto.Message
				GetErrorDetail() *statuspb.Status
			}
		}{
			{&wire.SotWRequest, new(discoveryv3.DiscoveryRequest), new(discoveryv3.DiscoveryRequest)},
			{&wire.DeltaRequest, new(discoveryv3.DeltaDiscoveryRequest), new(discoveryv3.DeltaDiscoveryRequest)},
		} {
			wantErr := proto.Unmarshal(data, form.want)
			used, err := decodeRequest(form.fields, bytes.Clone(data), form.got, &known)
			if wantErr == nil && err != nil {
				t.Fatalf("%x is %v, and gives %v", data, form.want, err)
			}
			if wantErr == nil {
				if of := form.want.GetErrorDetail(); of != nil {
					of.Details = nil
				}
				if !proto.Equal(form.got, form.want) {
					t.Fatalf("%x is %v, want %v", data, form.got, form.want)
				}
			}
			recycleNames(used)
		}
	})
}

// allocated counts the messages in a message.
func allocated(m protoreflect.Message) (n int) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				if field.MapValue().Message() != nil {
					n += 1 + allocated(v.Message())
				}
				return true
			})
		case field.IsList() && field.Message() != nil:
			for i := range v.List().Len() {
				n += 1 + allocated(v.List().Get(i).Message())
			}
		case field.Message() != nil:
			n += 1 + allocated(v.Message())
		}
		return true
	})
	return n
}
