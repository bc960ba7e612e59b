package taster

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

func findingsOf(t *testing.T, m proto.Message) (found []string) {
	t.Helper()
	of := Of(xdstype.Prefix + string(m.ProtoReflect().Descriptor().FullName()))
	for _, f := range of.Findings(encode(t, m)) {
		found = append(found, strings.TrimSpace(string(f.By)+" "+f.Rule+" "+f.Path))
	}
	return found
}

func TestRulesHaveNames(t *testing.T) {
	kebab := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	wants := map[string]string{}
	for _, r := range slices.Concat(Rules(), grpcRules()) {
		if !kebab.MatchString(r.ID) || r.Source == "" || r.Want == "" || r.By == "" || r.Of == "" {
			t.Errorf("%+v", r)
		}
		if want, ok := wants[r.ID]; ok && want != r.Want {
			t.Errorf("%s is %q and %q", r.ID, want, r.Want)
		}
		wants[r.ID] = r.Want
	}
}

// Findings and the verdict agree, and each finding has a rule.
func TestFindingsOfTheExamples(t *testing.T) {
	rules := map[string]Rule{}
	for _, r := range Rules() {
		rules[r.ID] = r
	}
	for _, e := range examples() {
		t.Run(e.typeURL()+"/"+e.name, func(t *testing.T) {
			of, value := Of(e.typeURL()), encode(t, e.resource)
			verdict, found := of.Taste(value), of.Findings(value)
			if (verdict == nil) != (len(found) == 0) {
				t.Fatalf("the verdict is %+v, the findings %+v", verdict, found)
			}
			by := func(family Family) bool {
				return slices.ContainsFunc(found, func(f Finding) bool { return f.By == family || f.By == All })
			}
			if verdict != nil && (verdict.Envoy != "" != by(Envoy) || verdict.GRPC != "" != by(GRPC)) {
				t.Errorf("the verdict is %+v, the findings %+v", verdict, found)
			}
			want := e.broken[strings.LastIndex(e.broken, "it requires that ")+1:]
			want = strings.TrimPrefix(want, "t requires that ")
			if e.broken != "" && !slices.ContainsFunc(found, func(f Finding) bool { return rules[f.Rule].Want == want && f.By != Envoy }) {
				t.Errorf("no finding of the rule that %s: %+v", want, found)
			}
			for _, f := range found {
				if rules[f.Rule].ID == "" {
					t.Errorf("%q is no rule", f.Rule)
				}
			}
		})
	}
}

func TestAllFindingsOfAResource(t *testing.T) {
	for _, tt := range []struct {
		name     string
		resource proto.Message
		want     []string
	}{
		{"several rules of one message, and of others", cluster(func(c *clusterv3.Cluster) {
			c.LbPolicy = clusterv3.Cluster_RANDOM
			c.LrsServer = ads
			c.OutlierDetection = &clusterv3.OutlierDetection{Interval: negative, MaxEjectionPercent: uint32Value(101)}
			c.ConnectTimeout = &durationpb.Duration{}
		}), []string{
			"envoy envoy-constraint connect_timeout",
			"envoy envoy-constraint outlier_detection.interval",
			"envoy envoy-constraint outlier_detection.max_ejection_percent",
			"grpc grpc-lb-policy", "grpc grpc-lrs-server",
			"grpc grpc-outlier-durations outlier_detection", "grpc grpc-outlier-percentages outlier_detection",
		}},
		{"several elements of a list", routes(func(r *routev3.RouteConfiguration) {
			r.VirtualHosts[0].Routes = append(r.VirtualHosts[0].Routes, &routev3.Route{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{}}}, &routev3.Route{Match: &routev3.RouteMatch{}, Action: &routev3.Route_Route{Route: &routev3.RouteAction{}}})
		}), []string{
			"envoy envoy-required virtual_hosts[0].routes[1].action",
			"envoy envoy-required virtual_hosts[0].routes[2].match.path_specifier",
			"envoy envoy-required virtual_hosts[0].routes[2].route.cluster_specifier",
			"grpc grpc-path-matcher virtual_hosts[0].routes[2]",
		}},
		{"in an Any, with the path from the outside", clientListener(func(h *hcmv3.HttpConnectionManager) { h.StatPrefix = "" }), []string{
			"envoy envoy-constraint api_listener.api_listener.stat_prefix",
		}},
		{"in an Any in a map", cluster(func(c *clusterv3.Cluster) {
			c.TypedExtensionProtocolOptions = map[string]*anypb.Any{"o": pack(&upstreamsv3.HttpProtocolOptions{})}
		}), []string{"envoy envoy-required typed_extension_protocol_options[o].upstream_protocol_options"}},
		{"what neither can decode is one finding", apiListener(garbage(&hcmv3.HttpConnectionManager{})), []string{"all any-decodable api_listener.api_listener"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if found := findingsOf(t, tt.resource); !slices.Equal(found, tt.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(found, "\n  "), strings.Join(tt.want, "\n  "))
			}
		})
	}
	if found := Of(xdstype.ClusterV3).Findings([]byte{0x07}); len(found) != 1 || found[0].Rule != decodable || found[0].By != All {
		t.Errorf("of no message: %+v", found)
	}
}

func TestFindingsAreBounded(t *testing.T) {
	found := findingsOf(t, routes(func(r *routev3.RouteConfiguration) {
		for range 1000 {
			r.VirtualHosts[0].Routes = append(r.VirtualHosts[0].Routes, &routev3.Route{})
		}
	}))
	if len(found) > 2*mostFindings || len(found) < mostFindings {
		t.Errorf("%d findings", len(found))
	}
}
