package integration

// TP1, "Alternatives": control planes of two authorities, of which one is killed.

import (
	"fmt"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
)

const (
	cloudEndpoints  = "xdstp://cloud.example.com/envoy.config.endpoint.v3.ClusterLoadAssignment/foo"
	onpremEndpoints = "xdstp://onprem/envoy.config.endpoint.v3.ClusterLoadAssignment/bar"
	// withAlternative is the name as a client that supports directives requests it. folded is the name as
	// Envoy sends it, with the directive inside the id.
	withAlternative = cloudEndpoints + "#alt=" + onpremEndpoints
	folded          = "xdstp://cloud.example.com/envoy.config.endpoint.v3.ClusterLoadAssignment/foo%23alt=xdstp%3A//onprem/envoy.config.endpoint.v3.ClusterLoadAssignment/bar"
)

// cloudAndOnprem is the configuration for control planes of two authorities.
func cloudAndOnprem(upstream form, failover string, cloud, onprem *killable) string {
	return prelude + fmt.Sprintf(`
authorities:
  - name: cloud.example.com
    failover: %s
    servers:
      - {address: %q, protocol: %s, backoff: {base: 50ms, max: 200ms}}
  - name: onprem
    servers:
      - {address: %q, protocol: %s, backoff: {base: 50ms, max: 200ms}}
`, failover, cloud.address, upstream, onprem.address, upstream)
}

// awaitPort waits until a client holds endpoints with this port. Both the name of the resource and the
// cluster name inside it have to be name.
func (c *client) awaitPort(t testing.TB, name string, port uint32) {
	t.Helper()
	c.await(t, fmt.Sprintf("the %s client has port %d of %s", c.form, port, name), func(v *view) bool {
		var m endpointv3.ClusterLoadAssignment
		if err := proto.Unmarshal([]byte(v.held[topic{endpointType, name}].value), &m); err != nil || m.GetClusterName() != name {
			return v.ended != nil
		}
		return m.GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetPortValue() == port
	})
	c.mustLive(t)
}

// TestAlternativeOfAnAuthorityThatIsDown checks that, while the primary's authority cannot be reached,
// clients receive the alternative under the name that they requested, in their own spelling. When the
// authority answers, they receive the primary.
func TestAlternativeOfAnAuthorityThatIsDown(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			cloud, onprem := newKillable(t), newKillable(t)
			onprem.start(plainEndpoints(onpremEndpoints, 2))
			r := startRelay(t, cloudAndOnprem(upstream, "{policy: unreachable, grace: 1ms, hysteresis: 100ms}", cloud, onprem))
			requested := time.Now()
			type requestedName struct {
				*client
				name string
			}
			var all []requestedName
			for _, f := range []form{delta, sotw} {
				for _, name := range []string{withAlternative, folded} {
					c := newClient(t, r, f, node(string(f), ""))
					c.subscribe(endpointType, name)
					all = append(all, requestedName{c, name})
				}
			}
			await := func(what string, port uint32, since time.Time) {
				t.Helper()
				for i, c := range all {
					if c.awaitPort(t, c.name, port); i == 0 {
						t.Logf("%s: %v", what, time.Since(since).Round(time.Millisecond))
					}
				}
			}
			await("from the request to the alternative, before the primary has ever answered", 2, requested)
			started := time.Now()
			cloud.start(plainEndpoints(cloudEndpoints, 1))
			await("from the start of the primary's control plane to the primary", 1, started)
			killed := time.Now()
			cloud.kill()
			await("from the death of the primary's control plane to the alternative", 2, killed)
			back := time.Now()
			cloud.start(plainEndpoints(cloudEndpoints, 3))
			await("from its return to the primary", 3, back)
			for _, c := range all {
				c.read(func(v *view) {
					if len(v.log) != 4 || len(v.gone) > 0 {
						t.Errorf("the %s client was sent %v, want the endpoints four times and no removals", c.form, v.log)
					}
				})
			}
		})
	}
}

// TestRPCsFlowThroughAnAlternative checks that RPCs of gRPC's client succeed while the authority of the
// primary endpoints is killed and restarted, twice. gRPC does not support alternatives. gRPC-Go sends a
// directive only if it is folded into the id. It drops other directives, so it requests only the primary, and
// keeps it while the authority is down. A redirect to a URL with an alternative needs no support from the
// client.
func TestRPCsFlowThroughAnAlternative(t *testing.T) {
	const redirected = "xdstp://onprem/envoy.config.endpoint.v3.ClusterLoadAssignment/either"
	for _, spelling := range []struct {
		what, name string
		follows    bool
	}{
		{"folded into the id", folded, true},
		{"a directive", withAlternative, false},
		{"in a redirect", redirected, true},
	} {
		for _, upstream := range []form{delta, sotw} {
			t.Run(fmt.Sprintf("%s, upstream %s", spelling.what, upstream), func(t *testing.T) {
				t.Parallel()
				cloud, onprem := newMortal(t, upstream), newMortal(t, upstream)
				one, other, third := startBackend(t, "cloud"), startBackend(t, "onprem"), startBackend(t, "third")
				endpoints := func(at *backend) said { return has(t, endpointsAt(t, cloudEndpoints, at.address)) }
				const begin = "xdstp://onprem/envoy.config."
				cloud.start(endpoints(one))
				onprem.start(
					has(t, apiListener(t, begin+"listener.v3.Listener/shop", begin+"route.v3.RouteConfiguration/shop")),
					has(t, routeConfiguration(begin+"route.v3.RouteConfiguration/shop", routeTo(begin+"cluster.v3.Cluster/shop", prefix("")))),
					has(t, edsCluster(begin+"cluster.v3.Cluster/shop", spelling.name)),
					redirect(t, endpointType, redirected, withAlternative),
					has(t, endpointsAt(t, onpremEndpoints, other.address)))
				r := startRelay(t, cloudAndOnprem(upstream, "{policy: unreachable, grace: 1ms, hysteresis: 1ms}", cloud.killable, onprem.killable))
				names := []string{"cloud.example.com", "onprem"}
				channel := dialXDS(t, federated(r, names...), "xds://onprem/shop")
				channel.awaitReaches(someMethod, one)
				at := one
				for _, next := range []*backend{third, one} {
					killed := time.Now()
					cloud.kill()
					if spelling.follows {
						channel.follow("the primary's authority is killed", other)
						t.Logf("from the death of the primary's control plane to RPCs at the alternative: %v", time.Since(killed).Round(time.Millisecond))
					} else {
						r.mustShow(t, "/metrics", `xds_relay_upstream_unreachable{grpc_xds_authority="cloud.example.com"} 1`)
						channel.follow("the primary's authority is killed", at)
					}
					back := time.Now()
					cloud.start(endpoints(next))
					channel.follow("it is restarted, with other endpoints", next)
					t.Logf("from its return to RPCs at the primary: %v", time.Since(back).Round(time.Millisecond))
					at = next
				}
			})
		}
	}
}
