package downstream

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// edge is a limit at its edge: what is just within it, and what is one more.
type edge struct {
	limits   Limits
	in, over []*discoveryv3.DeltaDiscoveryRequest
	want     string
	// elsewhere is a file that has such a test, and says text, for a limit that this form
	// does not fit.
	elsewhere, text string
}

func named(names ...string) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: names}
}

func ofType(typeURL string) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: []string{"a"}}
}

func ofNode(node *corev3.Node) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, Node: node}
}

// sizedNode is a Node of so many bytes.
func sizedNode(size int) *corev3.Node {
	node := &corev3.Node{Id: strings.Repeat("n", size-4)}
	if proto.Size(node) != size {
		panic(fmt.Sprintf("the node has %d bytes, want %d", proto.Size(node), size))
	}
	return node
}

func located(parameters int) *discoveryv3.DeltaDiscoveryRequest {
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType}
	for i := range parameters {
		req.ResourceLocatorsSubscribe = append(req.ResourceLocatorsSubscribe, &discoveryv3.ResourceLocator{
			Name: "a", DynamicParameters: map[string]string{"n": fmt.Sprint(i)},
		})
	}
	return req
}

func types(n int) (reqs []*discoveryv3.DeltaDiscoveryRequest) {
	for i := range n {
		reqs = append(reqs, ofType(fmt.Sprint("type/", i)))
	}
	return reqs
}

func one(req *discoveryv3.DeltaDiscoveryRequest) []*discoveryv3.DeltaDiscoveryRequest {
	return []*discoveryv3.DeltaDiscoveryRequest{req}
}

// edges are the limits of docs/limits.md.
var edges = map[string]edge{
	"limits.subscriptions": {
		limits: Limits{Subscriptions: 3}, in: one(named("a", "b", "c", "*")), over: one(named("a", "b", "c", "d")),
		want: "4 names subscribed to on this stream, but limits.subscriptions is 3",
	},
	"limits.name_bytes": {
		limits: Limits{NameBytes: 8}, in: one(named("12345678")), over: one(named("123456789")),
		want: "a name of 9 bytes, but limits.name_bytes is 8",
	},
	"types":          {in: types(64), over: types(65), want: "65 types on this stream, but the fixed limit types is 64"},
	"type_url_bytes": {in: one(ofType(strings.Repeat("t", 1024))), over: one(ofType(strings.Repeat("t", 1025))), want: "a type URL of 1025 bytes, but the fixed limit type_url_bytes is 1024"},
	"node_bytes":     {in: one(ofNode(sizedNode(256 << 10))), over: one(ofNode(sizedNode(256<<10 + 1))), want: "a node of 262145 bytes, but the fixed limit node_bytes is 262144"},
	"node_values": {
		in: one(ofNode(&corev3.Node{Metadata: manyValues(16<<10 - 5)})), over: one(ofNode(&corev3.Node{Metadata: manyValues(16<<10 - 4)})),
		want: "a node of 16385 values or more, but the fixed limit node_values is 16384",
	},
	"dynamic_parameters": {in: one(located(16)), over: one(located(17)), want: "17 different dynamic parameters of one type, but the fixed limit dynamic_parameters is 16"},

	"max_request_bytes":             {elsewhere: "requestbytes_test.go", text: "func TestTheErrorOfARequestThatIsTooLongNamesTheLimit("},
	"limits.streams":                {elsewhere: "conns_test.go", text: "func TestStreamsOfHealthCount("},
	"limits.connections":            {elsewhere: "conns_test.go", text: "func TestConnectionsAreLimited("},
	"limits.connections_per_second": {elsewhere: "conns_test.go", text: "func TestConnectionsThatEndSoonDelayOthersOfTheirAddress("},
	"load_report_parts":             {elsewhere: "loads_test.go", text: "func TestLoadReportsAreBounded("},
	"incomplete_requests":           {elsewhere: "arriving_test.go", text: "func TestIncompleteRequestsAreBounded("},
	"control_frames":                {elsewhere: "frames_test.go", text: "func TestControlFramesAreBounded("},
	"limits.streams_per_second":     {elsewhere: "conns_test.go", text: "func TestStreamsAreReadNoFasterThanAllowed("},
	"limits.requests_per_second":    {elsewhere: "limits_test.go", text: "func TestRequestsAreReadNoFasterThanAllowed("},
	"limits.request_burst":          {elsewhere: "limits_test.go", text: "func TestRequestsAreReadNoFasterThanAllowed("},
	"limits.streams_per_connection": {elsewhere: "../relay/settings_test.go", text: "streams_per_connection: 7"},
	"pending_names":                 {elsewhere: "limits_test.go", text: "func TestWhatIsNotReadIsBoundedOnTheWholeStream("},
	"alternatives":                  {elsewhere: "testdata/delta/alternatives.txt", text: "limit=alternatives max=16"},
	"limits.scopes":                 {elsewhere: "../relay/scopelimits_test.go", text: "limits.scopes is 100"},
	"limits.scopes_per_connection":  {elsewhere: "../relay/scopelimits_test.go", text: "limits.scopes_per_connection is 20"},

	"refused_streams":                         {elsewhere: "identities_test.go", text: "func TestConnectionsOfRefusedStreamsAreReadMoreSlowly("},
	"limits.memory_names":                     {elsewhere: "memory_test.go", text: "limits.memory_names is 50 percent"},
	"limits.memory_streams":                   {elsewhere: "memory_test.go", text: "limits.memory_streams is 90 percent"},
	"limits.scopes_per_identity":              {elsewhere: "identities_test.go", text: "limits.scopes_per_identity is 2"},
	"limits.types_per_identity":               {elsewhere: "identities_test.go", text: "limits.types_per_identity is 2"},
	"limits.subscriptions_per_identity":       {elsewhere: "identitynames_test.go", text: "limits.subscriptions_per_identity is 5"},
	"limits.streams_per_identity":             {elsewhere: "identities_test.go", text: "limits.streams_per_identity is 2"},
	"limits.requests_per_second_per_identity": {elsewhere: "identities_test.go", text: "limits.requests_per_second_per_identity is 10"},
}

// Each limit on the page is enforced where the page says: that much passes, and one more does not.
func TestLimitsHoldAtTheirEdges(t *testing.T) {
	page, err := os.ReadFile("../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, _ := strings.Cut(string(page), "\n## Limits that are configured\n")
	tables, _, ok := strings.Cut(tables, "\n## What breaks the protocol\n")
	key := regexp.MustCompile("^`([a-z_.]+)`$")
	var keys []string
	for row := range strings.Lines(tables) {
		if !strings.HasPrefix(row, "| `") {
			continue
		}
		for cell := range strings.SplitSeq(strings.Split(row, "|")[1], ",") {
			if m := key.FindStringSubmatch(strings.TrimSpace(cell)); m != nil {
				keys = append(keys, m[1])
			}
		}
	}
	if !ok || len(keys) < 10 {
		t.Fatalf("the page's tables are not found: %q", keys)
	}
	for name := range edges {
		if !slices.Contains(keys, name) {
			t.Errorf("%s is not in docs/limits.md", name)
		}
	}
	for _, name := range keys {
		if strings.HasPrefix(name, "servers") || strings.HasPrefix(name, "cache.") {
			continue // of what is asked upstream, not of one client
		}
		t.Run(name, func(t *testing.T) {
			e, ok := edges[name]
			switch {
			case !ok:
				t.Fatal("is in docs/limits.md, and has no test at its edge")
			case e.elsewhere != "":
				text, err := os.ReadFile(filepath.FromSlash(e.elsewhere))
				if err != nil || !strings.Contains(string(text), e.text) {
					t.Errorf("%s has no %s: %v", e.elsewhere, e.text, err)
				}
			default:
				e.check(t)
			}
		})
	}
}

func (e edge) check(t *testing.T) {
	run := func(reqs []*discoveryv3.DeltaDiscoveryRequest) (err error) {
		ch := newTestCache(&recordingSource{}, 1000)
		defer ch.Close()
		server, _ := newTestServer(ch, DefaultMaxResponseBytes)
		c := newTestClient(server, deltaForm.name, &corev3.Node{})
		defer c.close()
		c.st.limits = &e.limits
		for _, req := range reqs {
			if err == nil {
				err = c.delta(req)
			}
		}
		return err
	}
	if err := run(e.in); err != nil {
		t.Errorf("what is within the limit is refused: %v", err)
	}
	if err := run(e.over); status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != e.want {
		t.Errorf("one more gets %v, want RESOURCE_EXHAUSTED: %s", err, e.want)
	}
}

// Type URLs are short over every service.
func TestTypeURLsAreBoundedOverEveryService(t *testing.T) {
	r := newBadRelay(t, Limits{}, ListenerOptions{})
	long := strings.Repeat("t", maxTypeURLBytes+1)
	for _, service := range xdstype.Services(false) {
		for form, method := range map[string]string{deltaForm.name: service.Delta, sotwForm.name: service.Stream} {
			if method == "" {
				continue
			}
			g := openRaw(testContext(t), t, r.dial(), "/"+service.Name+"/"+method)
			_ = g.SendMsg(asking(form, long, "a")) // that it was refused says ending
			if err := ending(g); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s: got %v", method, err)
			}
		}
		if service.Fetch != "" {
			err := r.dial().Invoke(testContext(t), "/"+service.Name+"/"+service.Fetch, &discoveryv3.DiscoveryRequest{TypeUrl: long}, new(discoveryv3.DiscoveryResponse))
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s: got %v", service.Fetch, err)
			}
		}
		if service.Path != "" {
			w := httptest.NewRecorder()
			body := strings.NewReader(`{"typeUrl":"` + long + `"}`)
			req := httptest.NewRequest(http.MethodPost, service.Path, body)
			req.Header.Set("Content-Type", "application/json")
			r.server.HTTPServer(ListenerOptions{}).Handler.ServeHTTP(w, req)
			if w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), "type_url_bytes") {
				t.Errorf("%s: got %d %s", service.Path, w.Code, w.Body)
			}
		}
	}
	if !r.serveGood() {
		t.Error("the good client is not served")
	}
}
