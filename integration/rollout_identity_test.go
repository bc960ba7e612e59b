package integration

import (
	"crypto/tls"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// stops is how many rollouts an identity may stop alone.
const stops = 3

// passedOver is the line of a status with a client of an edge that is passed over.
var passedOver = regexp.MustCompile(`passed over: "[0-9a-f]{16}"`)

// identified are relays and clients that prove their identities with certificates of one CA.
type identified struct {
	t     *testing.T
	ca    *certtest.CA
	dir   *mounted
	conns map[string]*grpc.ClientConn
}

func newIdentified(t *testing.T) *identified {
	t.Helper()
	ca := certtest.NewCA(t, "clients")
	server, edge := issued(t, ca, "relay"), issued(t, ca, "edge")
	return &identified{t, ca, mount(t, map[string][]byte{
		"tls.crt": server.Cert, "tls.key": server.Key, "ca.crt": certtest.PEM(ca), "edge.crt": edge.Cert, "edge.key": edge.Key,
	}), map[string]*grpc.ClientConn{}}
}

// listens returns the configuration of a relay whose clients have certificates.
func (i *identified) listens(config string) string {
	return strings.Replace(config, "  - address: 127.0.0.1:0\n",
		fmt.Sprintf("  - address: 127.0.0.1:0\n    tls: {cert_file: %s, key_file: %s, client_ca_file: %s}\n", i.dir.path("tls.crt"), i.dir.path("tls.key"), i.dir.path("ca.crt")), 1)
}

// edge returns the configuration of a relay behind another one. All edges have one certificate.
func (i *identified) edge(id string, root *relay) string {
	config := strings.Replace(i.listens(relayTo(root.address, "delta")), "id: the-relay", "id: "+id, 1)
	return strings.Replace(config, "        protocol: delta\n",
		fmt.Sprintf("        protocol: delta\n        tls: {ca_file: %s, cert_file: %s, key_file: %s}\n", i.dir.path("ca.crt"), i.dir.path("edge.crt"), i.dir.path("edge.key")), 1)
}

// connect returns the connection of an identity to a relay. The options are for the first call.
func (i *identified) connect(who string, r *relay, options ...grpc.DialOption) *grpc.ClientConn {
	i.t.Helper()
	key := who + " " + r.address
	if i.conns[key] == nil {
		conn, err := grpc.NewClient(r.address, append(options, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: pool(i.ca), Certificates: []tls.Certificate{issued(i.t, i.ca, who).TLS}, MinVersion: tls.VersionTLS12,
		})))...)
		if err != nil {
			i.t.Fatal(err)
		}
		i.t.Cleanup(func() { _ = conn.Close() })
		i.conns[key] = conn
	}
	return i.conns[key]
}

// TestOneIdentityDoesNotStopRolloutsForEver checks that an identity that rejects every change, or breaks off its streams
// because of it, stops three rollouts and then none, though it has more streams than all others together: at the relay
// with the rollout, and behind an edge of it.
func TestOneIdentityDoesNotStopRolloutsForEver(t *testing.T) {
	const good, streams = 20, 25
	for _, tt := range []struct {
		name   string
		is     temper
		edge   bool
		madeUp bool // whoever breaks off comes back with another node id
	}{
		{name: "rejects", is: temper{rejects: "r"}},
		{name: "rejects behind an edge", is: temper{rejects: "r"}, edge: true},
		{name: "breaks off", is: temper{diesOf: "r"}},
		{name: "breaks off and makes up ids", is: temper{diesOf: "r"}, madeUp: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			all := newIdentified(t)
			cp := startControlPlane(t, delta)
			cp.set(plainListener("l", "content-l1"))
			// Clients answer well within the soak. An edge waits for the rejections of other clients, and from one NACK to the next.
			r := startRelay(t, all.listens(rolledOut(cp.address, "delta", "soak: 5s")))
			if tt.edge {
				r = startRelay(t, all.edge("edge", r))
			}
			who := ""
			fl := newFleet(t, delta, func() *grpc.ClientConn { return all.connect(who, r) })
			for i := range good {
				who = fmt.Sprint("good-", i)
				fl.join(who, "envoy", temper{}, listenerType)
			}
			who = "bad"
			ids := make([]string, streams)
			join := func(i int, id string) {
				ids[i] = id
				fl.join(id, "envoy", tt.is, listenerType)
			}
			for i := range ids {
				join(i, fmt.Sprint("bad-", i))
			}
			// await has clients that have broken off come back meanwhile.
			comeback := 0
			await := func(what string, done func(*fleetState) bool) {
				t.Helper()
				eventually(t, what, func() (err error) {
					var gone []int
					fl.read(func(s *fleetState) {
						for i, id := range ids {
							if s.ended[id] {
								gone = append(gone, i)
							}
						}
						if !done(s) {
							err = fmt.Errorf("the clients are %s", s)
						}
					})
					for _, i := range gone {
						id := ids[i]
						if comeback++; tt.madeUp {
							id = fmt.Sprint("bad-again-", comeback)
						}
						join(i, id)
					}
					return err
				})
			}
			haveFirst := func(s *fleetState) bool {
				have := 0
				for _, id := range s.who("l1") {
					if !s.ended[id] {
						have++
					}
				}
				return have == good+streams
			}
			await("all clients have the first state", haveFirst)
			for n := range stops {
				cp.set(plainListener("l", fmt.Sprint("content-r", n)))
				await("the rollout stops", func(*fleetState) (stopped bool) {
					cp.recorder.read(func(s *seen) { stopped = len(s.nacks) > n })
					return stopped
				})
				await("all clients have the first state again", haveFirst)
			}
			cp.set(plainListener("l", "content-r-last"))
			await("the good clients have the change", func(s *fleetState) bool {
				have := 0
				for _, id := range s.who("r-last") {
					if strings.HasPrefix(id, "good-") {
						have++
					}
				}
				return have == good
			})
		})
	}
}

// TestEdgesWithOneCertificateAreToldApart checks that a client that rejects every change, alone behind one of two edges
// with the same certificate, stops three rollouts and then none, while a rejection by clients of the other edge counts. The
// root knows the cohort of the client.
func TestEdgesWithOneCertificateAreToldApart(t *testing.T) {
	t.Parallel()
	const good = 3
	all := newIdentified(t)
	cp := startControlPlane(t, delta)
	cp.set(plainListener("l", "content-l1"))
	root := startRelay(t, all.listens(rolledOut(cp.address, "delta", "soak: 5s, first: 2")))
	one, other := startRelay(t, all.edge("one", root)), startRelay(t, all.edge("other", root))
	who, r := "bad", one
	fl := newFleet(t, delta, func() *grpc.ClientConn { return all.connect(who, r) })
	fl.join("bad", "envoy", temper{rejects: "r"}, listenerType)
	r = other
	for i := range good {
		who = fmt.Sprint("good-", i)
		fl.join(who, "envoy", temper{rejects: "really-bad"}, listenerType)
	}
	haveFirst := func(s *fleetState) bool { return len(s.who("l1")) == good+1 }
	fl.await(t, "all clients have the first state", haveFirst)
	for n := range stops {
		cp.set(plainListener("l", fmt.Sprint("content-r", n)))
		cp.await(t, "the rollout stops", func(s *seen) bool { return len(s.nacks) > n })
		fl.await(t, "all clients have the first state again", haveFirst)
	}
	printed, _ := operator{t, root.admin}.rollout("status")
	if len(passedOver.FindAllString(printed, -1)) != 1 || strings.Count(printed, "passed over") != 1 {
		t.Errorf("want that only the client that rejects is passed over:\n%s", printed)
	}
	if want := `cohort "envoy/1.0": 0 of 0 clients were sent the change, 0 acknowledged it, 1 behind other relays rejected it`; !strings.Contains(printed, want) {
		t.Errorf("want %s:\n%s", want, printed)
	}
	cp.set(plainListener("l", "content-r-last"))
	fl.await(t, "the good clients have the change", func(s *fleetState) bool { return len(s.who("r-last")) == good })
	cp.set(plainListener("l", "content-really-bad"))
	cp.await(t, "the others' rejection stops a rollout", func(s *seen) bool { return len(s.nacks) > stops })
}
