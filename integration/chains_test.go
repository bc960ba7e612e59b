package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// relayConfig is the configuration of a relay with that id. listener has further keys of its listener, and server of the
// server that it uses.
func relayConfig(id, listener, address, server string) string {
	return fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0"%s}]
admin: {address: "127.0.0.1:0"}
node: {id: %s}
authorities: [{name: cp.example.com, servers: [{address: %q, protocol: delta, backoff: {base: 20ms, max: 200ms}%s}]}]
old_style_names: [{authority: cp.example.com}]
`, listener, id, address, server)
}

// TestAClientsChainHarmsNoOther checks that a client that says that it has come through the relay upstream does not
// separate other clients of its relay from that: neither if its listener believes it, nor if it does not.
func TestAClientsChainHarmsNoOther(t *testing.T) {
	for _, tt := range []struct {
		name, listener string
		ends           bool // the client's stream ends
	}{
		{"of a client that counts as a relay", "", true},
		{"of another client", `, relays: "false"`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cp := startControlPlane(t, delta)
			root := startRelay(t, relayConfig("root-1", "", cp.address, ""))
			edge := startRelay(t, relayConfig("edge-1", tt.listener, root.address, ""))
			watch := startCanary(t, cp, edge, root)
			watch.updates(t, 10)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			attacker := func() error {
				ctx := metadata.AppendToOutgoingContext(ctx, "x-xds-relay-chain", "root-1,evil")
				s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connect(t, edge.address)).DeltaAggregatedResources(ctx)
				if err != nil {
					return err
				}
				if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "attacker"}, TypeUrl: endpointType, ResourceNamesSubscribe: []string{canaryName}}); err != nil {
					return err
				}
				for err == nil {
					_, err = s.Recv()
				}
				return err
			}
			attacks := make(chan error)
			go func() {
				for ctx.Err() == nil {
					attacks <- attacker()
				}
				close(attacks)
			}()
			ended := make(chan int)
			go func() {
				n := 0
				for err := range attacks {
					if ctx.Err() != nil {
						continue
					}
					n++
					if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "loop of relays: root-1 -> ") {
						t.Errorf("the attacker's stream ends with %v", err)
						cancel()
					}
				}
				ended <- n
			}()
			attacked, alone := watch.updates(t, 50).percentiles()
			if !raceDetector() && attacked > alone+mostSlower {
				t.Errorf("the canary's updates took %v, and %v at the relay upstream", attacked, alone)
			}
			cancel()
			if n := <-ended; n > 0 != tt.ends {
				t.Errorf("%d streams of the attacker ended", n)
			}
			if !tt.ends {
				edge.awaitLog(t, `says that it is a relay, but is none by .relays.`)
			}
		})
	}
}

// TestRelaysBehindRelaysOverTLS checks that relays are known by their certificates: a relay serves another one, and a loop
// of relays is found. Where the listener does not say who the relays are, it is not, and the relay logs that.
func TestRelaysBehindRelaysOverTLS(t *testing.T) {
	ca := certtest.NewCA(t, "fleet")
	files := map[string][]byte{"ca.crt": certtest.PEM(ca)}
	for _, name := range []string{"a", "b"} {
		pair := issued(t, ca, name)
		files[name+".crt"], files[name+".key"] = pair.Cert, pair.Key
	}
	dir := mount(t, files)
	// start starts a relay whose clients need certificates, and another listener in plaintext for the test.
	start := func(t *testing.T, id, relays, address string, upstreamTLS bool) (r *relay, secure string) {
		own := fmt.Sprintf("cert_file: %s, key_file: %s", dir.path(id+".crt"), dir.path(id+".key"))
		listener := fmt.Sprintf(`}, {address: "127.0.0.1:0", relays: %q, tls: {%s, client_ca_file: %s}`, relays, own, dir.path("ca.crt"))
		server := ""
		if upstreamTLS {
			server = fmt.Sprintf(", tls: {%s, ca_file: %s}", own, dir.path("ca.crt"))
		}
		r = startRelay(t, relayConfig(id, listener, address, server))
		return r, r.awaitSecond(t)
	}
	const proven = `identity.subject in ["CN=a", "CN=b"]`
	t.Run("in a row", func(t *testing.T) {
		t.Parallel()
		cp := startControlPlane(t, delta)
		root, secure := start(t, "b", proven, cp.address, false)
		edge, _ := start(t, "a", proven, secure, true)
		startCanary(t, cp, edge, root).updates(t, 5)
	})
	loop := func(t *testing.T, relays string) (a, b *relay) {
		first := make(chan string, 1)
		way := startBalancerTo(t, func() string { address := <-first; first <- address; return address })
		b, secure := start(t, "b", relays, way.address, true)
		a, address := start(t, "a", relays, secure, true)
		first <- address
		newClient(t, a, delta, node("client", "")).subscribe(endpointType, canaryName)
		return a, b
	}
	t.Run("in a loop", func(t *testing.T) {
		t.Parallel()
		a, b := loop(t, proven)
		within(t, 10*time.Second, "a loop is found", func() error { // without that, clients get an error after 15 s
			if logs := a.stderr.String() + b.stderr.String(); !strings.Contains(logs, "loop of relays: ") {
				return fmt.Errorf("the relays log %s", logs)
			}
			return nil
		})
	})
	t.Run("in a loop, without being known", func(t *testing.T) {
		t.Parallel()
		a, b := loop(t, `identity.subject == "CN=c"`)
		for _, r := range []*relay{a, b} {
			r.awaitLog(t, `client says that it is a relay, but is none by .relays.* identity="mtls CN=.`)
		}
	})
}
