package integration

import (
	"crypto/tls"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// TestOneIdentityDoesNotStopRolloutsForEver checks that an identity that rejects every change stops three rollouts and then
// none, though it has more streams than all others together: at the relay with the rollout, and behind an edge of it.
func TestOneIdentityDoesNotStopRolloutsForEver(t *testing.T) {
	const good, streams, stops = 20, 25, 3
	for _, through := range []string{"the relay", "an edge"} {
		t.Run(through, func(t *testing.T) {
			t.Parallel()
			ca := certtest.NewCA(t, "clients")
			server := issued(t, ca, "relay")
			dir := mount(t, map[string][]byte{"tls.crt": server.Cert, "tls.key": server.Key, "ca.crt": certtest.PEM(ca)})
			secure := fmt.Sprintf("  - address: 127.0.0.1:0\n    tls: {cert_file: %s, key_file: %s, client_ca_file: %s}\n", dir.path("tls.crt"), dir.path("tls.key"), dir.path("ca.crt"))
			withTLS := func(config string) string {
				return strings.Replace(config, "  - address: 127.0.0.1:0\n", secure, 1)
			}
			cp := startControlPlane(t, delta)
			cp.set(plainListener("l", "content-l1"))
			// A client with so many others needs time for its answer. An edge also waits for the rejections of other clients,
			// and from one NACK to the next.
			root := rolledOut(cp.address, "delta", "soak: 5s")
			var r *relay
			if through == "an edge" {
				r = startRelay(t, strings.Replace(withTLS(relayTo(startRelay(t, root).address, "delta")), "id: the-relay", "id: edge", 1))
			} else {
				r = startRelay(t, withTLS(root))
			}
			who := ""
			conns := map[string]*grpc.ClientConn{}
			fl := newFleet(t, delta, func() *grpc.ClientConn {
				if conns[who] == nil {
					conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
						RootCAs: pool(ca), Certificates: []tls.Certificate{issued(t, ca, who).TLS}, MinVersion: tls.VersionTLS12,
					})))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = conn.Close() })
					conns[who] = conn
				}
				return conns[who]
			})
			for i := range good {
				who = fmt.Sprint("good-", i)
				fl.join(who, "envoy", temper{}, listenerType)
			}
			who = "bad"
			for i := range streams {
				fl.join(fmt.Sprint("bad-", i), "envoy", temper{rejects: "r"}, listenerType)
			}
			fl.await(t, "all clients have the first state", func(s *fleetState) bool { return len(s.who("l1")) == good+streams })
			for n := range stops {
				cp.set(plainListener("l", fmt.Sprint("content-r", n)))
				cp.await(t, "the rollout stops", func(s *seen) bool { return len(s.nacks) > n })
				fl.await(t, "all clients have the first state again", func(s *fleetState) bool { return len(s.who("l1")) == good+streams })
			}
			cp.set(plainListener("l", "content-r-last"))
			fl.await(t, "the good clients have the change", func(s *fleetState) bool { return len(s.who("r-last")) >= good })
		})
	}
}
