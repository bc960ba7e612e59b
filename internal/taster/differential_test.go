package taster

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	_ "github.com/xds-relay/xds-relay/client/render" // all of Envoy's messages, as the binary has them
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// gRPC's Go client and the rules here check randomly changed resources. A rule rejects exactly those resources that
// gRPC rejects, except for the listed differences, each with its reason. `make differential` runs longer.

var (
	mutations = flag.Int("mutations", 1000, "how many resources of each type are changed at random")
	seed      = flag.Uint64("seed", 1, "the seed of the changes")
)

// allowed is a permitted difference, and its reason.
type allowed struct {
	why  string
	when func(c changed, nack string) bool
}

// elsewhere are the filters that gRPC supports in other languages, or as experimental features.
var elsewhere = regexp.MustCompile(`\.(stateful_session|gcp_authn|ext_proc|ext_authz)\.`)

// onlyGo are resources that gRPC's Go client rejects, but other clients need not.
var onlyGo = []allowed{
	{"a TypedStruct names a load balancer that an application may have", func(c changed, nack string) bool {
		return strings.Contains(nack, "no supported policy found") && strings.Contains(prototext.Format(c.resource), "TypedStruct")
	}},
	{"a TypedStruct names an audit logger that an application may have", func(_ changed, nack string) bool {
		return strings.Contains(nack, "no builder registered for")
	}},
	{"the Go client takes system_root_certs (gRFC A82) with an experimental feature only", func(c changed, nack string) bool {
		return strings.Contains(nack, "ca_certificate_provider_instance is missing") && strings.Contains(prototext.Format(c.resource), "system_root_certs")
	}},
	{"gRPC has these filters in other languages, or with an experimental feature", func(_ changed, nack string) bool {
		_, url, ok := strings.Cut(nack, "no filter implementation found for ")
		return ok && elsewhere.MatchString(url)
	}},
}

// notGo are resources that gRPC's Go client accepts, but other clients need not.
var notGo = []allowed{
	{"the Go client does not look at the type of an aggregate cluster's configuration", func(c changed, _ string) bool {
		return only(c.rules, "grpc-aggregate-names")
	}},
	{"the Go client does not read the configuration of round_robin", func(c changed, _ string) bool {
		m, ok := c.resource.(*clusterv3.Cluster)
		return ok && only(c.rules, anyDecodable) && m.GetLoadBalancingPolicy() != nil
	}},
	{"the Go client reads a choice_count of 0 in a policy as one that is not set", func(c changed, _ string) bool {
		return only(c.rules, "grpc-policy-choices")
	}},
	{"the Go client does not have these filters without an experimental feature, and does not read those that are optional", func(c changed, _ string) bool {
		return only(c.rules, "grpc-http-filter-config", "grpc-override-config", anyDecodable) && elsewhere.MatchString(prototext.Format(c.resource))
	}},
	{"the Go client takes a provider of root certificates that has no name", func(c changed, _ string) bool {
		return only(c.rules, "grpc-server-roots")
	}},
	{"the Go client does not look at filter chains for any transport behind one for raw_buffer", func(c changed, _ string) bool {
		m, ok := c.resource.(*listenerv3.Listener)
		return ok && slices.ContainsFunc(m.GetFilterChains(), func(f *listenerv3.FilterChain) bool {
			return f.GetFilterChainMatch().GetTransportProtocol() == rawBuffer
		})
	}},
}

func only(rules []string, allowed ...string) bool {
	return !slices.ContainsFunc(rules, func(rule string) bool { return !slices.Contains(allowed, rule) })
}

func isAllowed(all []allowed, c changed, nack string) bool {
	return slices.ContainsFunc(all, func(a allowed) bool { return a.when(c, nack) })
}

// batch is how many resources are in one response.
const batch = 100

func TestGRPCRejectsTheSameOfRandomChanges(t *testing.T) {
	c, listener := startGRPC(t)
	// Endpoints first: without a cluster that is good, the client requests none.
	for i, good := range []proto.Message{endpoints(), goodCluster(), goodRoutes(), listener} {
		d := &differential{conversation: c, good: good, mutator: mutator{rand.New(rand.NewPCG(*seed, uint64(i)))}}
		t.Run(string(good.ProtoReflect().Descriptor().Name()), d.run)
	}
}

// differential is a run of one type.
type differential struct {
	*conversation
	mutator
	good  proto.Message
	count int

	rejected, falseAccepts, falseRejects, allowed int
}

// changed is a changed resource, and the families that reject it.
type changed struct {
	name     string
	resource proto.Message
	rules    []string // of gRPC that it breaks
}

func (d *differential) run(t *testing.T) {
	d.t = t
	from := d.originals()
	start := time.Now()
	for d.count < *mutations {
		var all []changed
		for range batch {
			all = append(all, d.next(t, from[d.IntN(len(from))]))
		}
		d.compare(t, all, d.sendAll(all))
	}
	t.Logf("%d resources, %d of which gRPC rejects, %.0f each second; of which it rejects, %d are taken here, and of those that it takes, %d are rejected; %d differ for a reason", d.count, d.rejected,
		float64(d.count)/time.Since(start).Seconds(), d.falseAccepts, d.falseRejects, d.allowed)
	if d.rejected < d.count/20 || d.rejected > d.count*19/20 {
		t.Error("nearly all of them are the same")
	}
}

// originals are the examples that gRPC accepts.
func (d *differential) originals() (from []proto.Message) {
	for _, e := range examples() {
		if e.broken == "" && e.resource.ProtoReflect().Descriptor() == d.good.ProtoReflect().Descriptor() {
			from = append(from, e.resource)
		}
	}
	return from
}

// next returns a changed resource, with a name of its own.
func (d *differential) next(t *testing.T, from proto.Message) changed {
	t.Helper()
	d.count++
	m := proto.Clone(from)
	d.mutate(m)
	name := fmt.Sprintf("changed-%d", d.count)
	switch m := m.(type) {
	case *clusterv3.Cluster:
		if d.IntN(20) == 0 {
			name = "xdstp://a/envoy.config.cluster.v3.Cluster/" + name
		}
		m.Name = name
	case *endpointv3.ClusterLoadAssignment:
		m.ClusterName = name
	case *routev3.RouteConfiguration:
		m.Name = name
	case *listenerv3.Listener:
		m.Name = name
	}
	c := changed{name: name, resource: m}
	for _, f := range Of(xdstype.Prefix + string(m.ProtoReflect().Descriptor().FullName())).Findings(encode(t, m)) {
		if f.By != Envoy {
			c.rules = append(c.rules, f.Rule)
		}
	}
	return c
}

// sendAll sends resources, and returns gRPC's reasons for those that it rejects, by name. It also sends the good
// resource: in a type with full state, a resource that is not sent is removed.
func (d *differential) sendAll(all []changed) map[string]string {
	d.t.Helper()
	contents := []*anypb.Any{pack(d.good)}
	for _, c := range all {
		contents = append(contents, pack(c.resource))
	}
	d.versions++
	version := fmt.Sprint(d.versions)
	response := &discoveryv3.DiscoveryResponse{TypeUrl: contents[0].TypeUrl, VersionInfo: version, Nonce: version, Resources: contents}
	if err := d.stream.Send(response); err != nil {
		d.t.Fatal(err)
	}
	answer := d.await("answer", func(r *discoveryv3.DiscoveryRequest) bool {
		return r.TypeUrl == response.TypeUrl && r.ResponseNonce == version
	})
	rejected := map[string]string{}
	text := answer.GetErrorDetail().GetMessage()
	if strings.Contains(text, "top level errors: ") && len(all) > 1 {
		for i := range all { // gRPC does not say which one it is
			for name, why := range d.sendAll(all[i : i+1]) {
				rejected[name] = why
			}
		}
		return rejected
	}
	for _, c := range all {
		_, why, found := strings.Cut(text, fmt.Sprintf("resource %q: ", c.name))
		if !found {
			why = text
		}
		if found || text != "" && len(all) == 1 {
			why, _, _ = strings.Cut(why, ";\nresource ")
			rejected[c.name] = why
		}
	}
	if text != "" && len(rejected) == 0 {
		d.t.Fatalf("gRPC rejects none of them: %s", text)
	}
	return rejected
}

// mostShown is how many differences are shown.
const mostShown = 15

func (d *differential) compare(t *testing.T, all []changed, rejected map[string]string) {
	t.Helper()
	d.rejected += len(rejected)
	for _, c := range all {
		why, isRejected := rejected[c.name]
		switch {
		case isRejected && len(c.rules) == 0:
			if isAllowed(onlyGo, c, why) {
				d.allowed++
				continue
			}
			if d.falseAccepts++; d.falseAccepts <= mostShown {
				t.Errorf("gRPC rejects it, and no rule says so: %.200s ... %s\n%s", why, why[max(0, len(why)-300):], prototext.MarshalOptions{Multiline: true}.Format(c.resource))
			}
		case !isRejected && len(c.rules) > 0:
			if isAllowed(notGo, c, "") {
				d.allowed++
				continue
			}
			if d.falseRejects++; d.falseRejects <= mostShown {
				t.Errorf("gRPC takes it, against %q\n%s", c.rules, prototext.MarshalOptions{Multiline: true}.Format(c.resource))
			}
		}
	}
}
