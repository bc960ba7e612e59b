package configs

import (
	"slices"
	"strings"
	"testing"

	xdsv3 "github.com/cncf/xds/go/xds/core/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestWhatThePartitionReadsGoesUpstream(t *testing.T) {
	for _, tt := range []struct {
		partition string
		fields    []string
		want      string // of all but id and cluster; * for the whole Node
	}{
		{partition: ""},
		{partition: "node.cluster"},
		{partition: `"all"`},
		{partition: "type_url"},
		{partition: `node.cluster + "/" + node.locality.zone`, want: "locality.zone"},
		{partition: "node.locality.zone + node.locality.region", want: "locality.region locality.zone"},
		{partition: "node.metadata.ROLE", want: "metadata.ROLE"},
		{partition: `node.metadata["ROLE"]`, want: "metadata.ROLE"},
		{partition: `node.metadata["istio.io/rev"]`, want: `metadata["istio.io/rev"]`},
		{partition: "node.metadata.LABELS.app", want: "metadata.LABELS.app"},
		{partition: `has(node.metadata.ROLE) ? string(node.metadata.ROLE) : "none"`, want: "metadata.ROLE"},
		{partition: "string(node.metadata[node.metadata.KEY])", want: "metadata"},
		{partition: "string(node.metadata[node.locality.zone].x)", want: "locality.zone metadata"},
		{partition: `string(node.metadata.LIST[0].x)`, want: "metadata.LIST"},
		{partition: `node.metadata.exists(k, k == "x") ? "a" : "b"`, want: "metadata"},
		{partition: `["a"].exists(node, node == "a") ? "a" : "b"`},
		{partition: `["a"].exists(x, node.user_agent_name == x) ? "a" : "b"`, want: "user_agent_name"},
		{partition: "node.user_agent_build_version.metadata.x", want: "user_agent_build_version.metadata.x"},
		{partition: `node.extensions[0].name`, want: "extensions"},
		{partition: `string(node.dynamic_parameters["t"].params["env"])`, want: "dynamic_parameters.t.params.env"},
		{partition: `node == node ? "a" : "b"`, want: "*"},

		{partition: "node.id", want: "*"},
		{partition: ` node . id `, want: "*"},
		{partition: `node.cluster + "/" + node.id`},
		{partition: `node.id + "/x"`},
		{partition: `node.metadata.PROXY ? node.id : node.cluster + node.id`, want: "metadata.PROXY"},
		{partition: `node.id == "x" ? node.id : node.cluster`},
		{partition: `node.id.startsWith("edge-") ? "edge" : "rest"`},

		{partition: "node.cluster", fields: []string{"locality", "metadata.ROLE"}, want: "locality metadata.ROLE"},
		{partition: "node.locality.zone", fields: []string{"locality", "id"}, want: "locality"},
		{fields: []string{`metadata["a.b"].c`, "user_agent_name", "dynamic_parameters", "user_agent_build_version.version"},
			want: `dynamic_parameters metadata["a.b"].c user_agent_build_version.version user_agent_name`},
		{partition: "node.cluster", fields: []string{"*"}, want: "*"},
		{partition: "node.id", fields: []string{"locality"}, want: "*"},
	} {
		r := &Rule{Partition: tt.partition, NodeFields: tt.fields}
		if errs := r.compile(); len(errs) > 0 {
			t.Errorf("%s %q: %v", tt.partition, tt.fields, errs)
			continue
		}
		got := slices.DeleteFunc(r.Upstream().Paths(), func(p string) bool { return p == "id" || p == "cluster" })
		if r.Upstream().Whole() {
			got = []string{"*"}
		} else if len(r.Upstream().Paths()) != len(got)+2 {
			t.Errorf("%s %q: without id or cluster: %q", tt.partition, tt.fields, r.Upstream().Paths())
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s %q: %s goes upstream, want %s", tt.partition, tt.fields, text, tt.want)
		}
	}
}

func TestPartitionsThatJoinTextsAreKnown(t *testing.T) {
	for partition, want := range map[string]bool{
		"":                               false,
		"node.id":                        false,
		`"x/" + node.id + "/y"`:          false,
		`node.cluster + "/" + node.id`:   true,
		`"a" + (node.cluster + node.id)`: true,
		`node.id == "x" ? node.cluster + string(node.metadata.ROLE) : "y"`: true,
		`node.id == "x" ? node.cluster : "y"`:                              false,
	} {
		r := &Rule{Partition: partition}
		if errs := r.compile(); len(errs) > 0 {
			t.Errorf("%s: %v", partition, errs)
		} else if got := r.Joins(); got != want {
			t.Errorf("%s: joins is %v, want %v", partition, got, want)
		}
	}
}

func TestMistakesInNodeFieldsSayWhatWasMeant(t *testing.T) {
	for entry, want := range map[string]string{
		"localty":                    `"localty" is not a field of a Node (did you mean "locality"?)`,
		"locality.zon":               `"locality.zon" is not a field of a Node (did you mean "locality.zone"?)`,
		"node.locality":              `"node.locality" begins with node (did you mean "locality"?)`,
		"locality.rack":              `"locality.rack" is not a field of a Node (want one of region, zone, sub_zone)`,
		"cluster.name":               `"cluster.name" is below "cluster", which goes as a whole (want "cluster")`,
		"extensions.name":            `"extensions.name" is below "extensions", which goes as a whole (want "extensions")`,
		"client_features.x":          `"client_features.x" is below "client_features", which goes as a whole (want "client_features")`,
		"metadata.":                  `"metadata." is not a field of a Node (want a path such as locality.zone, metadata.ROLE or metadata["a.b"])`,
		"metadata.a b":               `"metadata.a b" is not a field of a Node (want a path such as locality.zone, metadata.ROLE or metadata["a.b"])`,
		`metadata["a]`:               `"metadata[\"a]" is not a field of a Node (want a path such as locality.zone, metadata.ROLE or metadata["a.b"])`,
		`["metadata"]`:               `"[\"metadata\"]" is not a field of a Node (want a path such as locality.zone, metadata.ROLE or metadata["a.b"])`,
		"dynamic_parameters.t.parms": `"dynamic_parameters.t.parms" is not a field of a Node (did you mean "dynamic_parameters.t.params"?)`,
	} {
		r := &Rule{NodeFields: []string{"locality", entry}}
		errs := r.compile()
		if len(errs) != 1 || errs[0].Path != "node_fields[1]" || errs[0].Err.Error() != want {
			t.Errorf("%s: got %v, want %s", entry, errs, want)
		}
	}
	for _, entries := range [][]string{{"locality", "locality"}, {"*", "locality"}} {
		if errs := (&Rule{NodeFields: entries}).compile(); len(errs) != 1 {
			t.Errorf("%q: got %v", entries, errs)
		}
	}
}

// What is not to go upstream is not there, and what goes is as it was.
func TestSomeFieldsOfANodeAreASmallerNode(t *testing.T) {
	metadata, err := structpb.NewStruct(map[string]any{
		"ROLE": "edge", "LABELS": map[string]any{"app": "cart", "version": "v2"}, "POD_IP": "10.0.0.1", "LIST": []any{"a"},
	})
	if err != nil {
		t.Fatal(err)
	}
	params := func(env string) *xdsv3.ContextParams {
		return &xdsv3.ContextParams{Params: map[string]string{"env": env}}
	}
	client := &corev3.Node{
		Id: "envoy-1", Cluster: "edge", Locality: &corev3.Locality{Region: "r", Zone: "z"}, Metadata: metadata,
		UserAgentName:     "envoy",
		DynamicParameters: map[string]*xdsv3.ContextParams{"a": params("1"), "b": params("2")},
	}
	labels := func(kv map[string]any) *structpb.Struct {
		s, err := structpb.NewStruct(kv)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, tt := range []struct {
		fields []string
		want   *corev3.Node
	}{
		{nil, &corev3.Node{}},
		{[]string{"locality.zone"}, &corev3.Node{Locality: &corev3.Locality{Zone: "z"}}},
		{[]string{"locality.zone", "locality.region"}, &corev3.Node{Locality: &corev3.Locality{Region: "r", Zone: "z"}}},
		{[]string{"metadata.ROLE", "metadata.LABELS.app"}, &corev3.Node{Metadata: labels(map[string]any{"ROLE": "edge", "LABELS": map[string]any{"app": "cart"}})}},
		{[]string{"metadata.LABELS.app", "metadata.LABELS.version"}, &corev3.Node{Metadata: labels(map[string]any{"LABELS": map[string]any{"app": "cart", "version": "v2"}})}},
		{[]string{"metadata.LIST", "metadata.NONE", "metadata.ROLE.x"}, &corev3.Node{Metadata: labels(map[string]any{"LIST": []any{"a"}})}},
		{[]string{"dynamic_parameters.a"}, &corev3.Node{DynamicParameters: map[string]*xdsv3.ContextParams{"a": params("1")}}},
		{[]string{"dynamic_parameters.b.params.env", "dynamic_parameters.c"}, &corev3.Node{DynamicParameters: map[string]*xdsv3.ContextParams{"b": params("2")}}},
		{[]string{"user_agent_name", "user_agent_build_version"}, &corev3.Node{UserAgentName: "envoy"}},
	} {
		r := &Rule{NodeFields: tt.fields}
		if errs := r.compile(); len(errs) > 0 {
			t.Fatal(errs)
		}
		tt.want.Id, tt.want.Cluster = "envoy-1", "edge"
		before := proto.CloneOf(client)
		if got := r.Upstream().Of(client); !proto.Equal(got, tt.want) {
			t.Errorf("%q: got %v, want %v", tt.fields, got, tt.want)
		}
		if !proto.Equal(client, before) {
			t.Errorf("%q: the client's own Node was changed", tt.fields)
		}
		if got := r.Upstream().Of(nil); proto.Size(got) != 0 {
			t.Errorf("%q of no Node: %v", tt.fields, got)
		}
	}
}
