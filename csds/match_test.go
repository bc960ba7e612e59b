package csds

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

func TestNodeMatchersMatchAsEnvoyDoes(t *testing.T) {
	node := new(corev3.Node)
	if err := protojson.Unmarshal([]byte(`{"id": "edge-1", "metadata": {"zone": "b", "n": 3, "on": true, "list": ["x", "y"], "deep": {"er": "here"}, "none": null}}`), node); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		matchers string
		want     bool
	}{
		{`{}`, true},
		{`{"nodeId": {"exact": "edge-1"}}`, true},
		{`{"nodeId": {"exact": "Edge-1"}}`, false},
		{`{"nodeId": {"exact": "Edge-1", "ignoreCase": true}}`, true},
		{`{"nodeId": {"prefix": "edge-"}}`, true},
		{`{"nodeId": {"suffix": "-2"}}`, false},
		{`{"nodeId": {"contains": "ge"}}`, true},
		{`{"nodeId": {"safeRegex": {"regex": "edge-[0-9]"}}}`, true},
		{`{"nodeId": {"safeRegex": {"regex": "edge"}}}`, false}, // all of it has to match
		{`{"nodeId": {"exact": "edge-2"}}, {"nodeId": {"exact": "edge-1"}}`, true},
		{`{"nodeMetadatas": [{"path": [{"key": "zone"}], "value": {"stringMatch": {"exact": "b"}}}]}`, true},
		{`{"nodeMetadatas": [{"path": [{"key": "deep"}, {"key": "er"}], "value": {"stringMatch": {"exact": "here"}}}]}`, true},
		{`{"nodeMetadatas": [{"path": [{"key": "zone"}, {"key": "er"}], "value": {"presentMatch": true}}]}`, false},
		{`{"nodeMetadatas": [{"path": [{"key": "zone"}], "value": {"presentMatch": true}}]}`, true},
		{`{"nodeMetadatas": [{"path": [{"key": "away"}], "value": {"presentMatch": false}}]}`, false},
		{`{"nodeMetadatas": [{"path": [{"key": "none"}], "value": {"nullMatch": {}}}]}`, true},
		{`{"nodeMetadatas": [{"path": [{"key": "away"}], "value": {"nullMatch": {}}}]}`, false},
		{`{"nodeMetadatas": [{"path": [{"key": "n"}], "value": {"doubleMatch": {"range": {"start": 3, "end": 4}}}}]}`, true},
		{`{"nodeMetadatas": [{"path": [{"key": "n"}], "value": {"doubleMatch": {"range": {"start": 2, "end": 3}}}}]}`, false},
		{`{"nodeMetadatas": [{"path": [{"key": "n"}], "value": {"doubleMatch": {"exact": 3}}}]}`, true},
		{`{"nodeMetadatas": [{"path": [{"key": "on"}], "value": {"boolMatch": true}}]}`, true},
		{`{"nodeMetadatas": [{"path": [{"key": "list"}], "value": {"listMatch": {"oneOf": {"stringMatch": {"exact": "y"}}}}}]}`, true},
		{`{"nodeMetadatas": [{"path": [{"key": "list"}], "value": {"listMatch": {"oneOf": {"stringMatch": {"exact": "z"}}}}}]}`, false},
		{`{"nodeMetadatas": [{"path": [{"key": "zone"}], "value": {"orMatch": {"valueMatchers": [{"nullMatch": {}}, {"stringMatch": {"exact": "b"}}]}}}]}`, true},
		{`{"nodeId": {"exact": "edge-1"}, "nodeMetadatas": [{"path": [{"key": "zone"}], "value": {"stringMatch": {"exact": "c"}}}]}`, false},
	} {
		req := new(statusv3.ClientStatusRequest)
		if err := protojson.Unmarshal([]byte(`{"nodeMatchers": [`+test.matchers+`]}`), req); err != nil {
			t.Fatalf("%s: %v", test.matchers, err)
		}
		matches, err := matcherOf(req.GetNodeMatchers())
		if err != nil {
			t.Errorf("%s: %v", test.matchers, err)
		} else if got := matches(node); got != test.want {
			t.Errorf("%s: got %v, want %v", test.matchers, got, test.want)
		}
	}
}

func TestBadNodeMatchersAreErrorsThatSayWhere(t *testing.T) {
	for matchers, want := range map[string]string{
		`{"nodeId": {}}`: "[0].node_id: it has no pattern",
		`{}, {"nodeId": {"safeRegex": {"regex": "("}}}`:               "[1].node_id: safe_regex",
		`{"nodeId": {"safeRegex": {"regex": "(abcdefghijk){1000}"}}}`: "more than 10000 patterns",
		`{}` + strings.Repeat(`, {}`, mostPatterns):                   "[10000]it has more than 10000 patterns",
		`{"nodeMetadatas": [{"path": [{"key": "a"}` + strings.Repeat(`, {"key": "a"}`, mostPatterns) + `], "value": {"nullMatch": {}}}]}`: "more than 10000 patterns",
		`{"nodeMetadatas": [{"value": {"nullMatch": {}}}]}`:                                           "[0].node_metadatas[0]: it has no path",
		`{"nodeMetadatas": [{"path": [{"key": "a"}]}]}`:                                               "[0].node_metadatas[0]: it has no pattern for a value",
		`{"nodeMetadatas": [{"path": [{"key": "a"}], "value": {"listMatch": {"oneOf": {}}}}]}`:        "it has no pattern for a value",
		`{"nodeMetadatas": [{"path": [{"key": "a"}], "value": {"orMatch": {"valueMatchers":[{}]}}}]}`: "it has no pattern for a value",
	} {
		req := new(statusv3.ClientStatusRequest)
		if err := protojson.Unmarshal([]byte(`{"nodeMatchers": [`+matchers+`]}`), req); err != nil {
			t.Fatalf("%s: %v", matchers, err)
		}
		if _, err := matcherOf(req.GetNodeMatchers()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", matchers, err, want)
		}
	}
}
