package envoy

// Clusters and Listeners that wait for what they refer to, while Envoy uses the ones from before.

import (
	"crypto/tls"
	"net/http"
	"os"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// A Cluster that changes waits for its endpoints again, whether or not these change. The endpoints may be those of
// another Cluster, too, and a Cluster beside it may need none.
func TestAClusterWarms(t *testing.T) {
	play(t, scenario{
		run: func(s *side) {
			first, second, third := s.backend("first"), s.backend("second"), s.backend("third")
			// waiting returns a Cluster whose timeouts tell its versions apart. A control plane that does not
			// send endpoints again leaves it waiting for as long as its initial_fetch_timeout.
			waiting := func(name, service string, timeout time.Duration) *clusterv3.Cluster {
				c := s.cluster(name, service)
				c.ConnectTimeout = durationpb.New(timeout)
				c.EdsClusterConfig.EdsConfig.InitialFetchTimeout = durationpb.New(2 * time.Second)
				return c
			}
			s.push(func(w world) {
				s.shop(w, "one", first)
				w.set("one", waiting("one", "", time.Second))
			})
			s.step("requests reach the first backend", s.reaches(first))
			s.send()

			s.push(func(w world) { w.set("one", waiting("one", "", 2*time.Second)) })
			s.step("the Cluster has changed", all(s.has(activeCluster, "one", `"connect_timeout":"2s"`), s.reaches(first)))
			s.push(func(w world) {
				w.set("one", waiting("one", "", 3*time.Second))
				w.set("one", endpoints("one", second))
			})
			s.step("the Cluster and its endpoints have changed", all(s.has(activeCluster, "one", `"connect_timeout":"3s"`), s.reaches(second)))

			s.push(func(w world) { w.set("twin", waiting("twin", "one", time.Second)) })
			s.step("another Cluster has the same endpoints", s.hasHost("twin", second))
			s.push(func(w world) { w.set("routes", routesTo("routes", "twin")) })
			s.step("requests reach them by the other Cluster", s.reaches(second))
			s.push(func(w world) {
				w.set("twin", waiting("twin", "one", 2*time.Second))
				w.set("one", endpoints("one", third))
			})
			s.step("both Clusters have changed endpoints", all(s.reaches(third),
				s.hasHost("one", third), s.hasHost("twin", third)))

			dns := func(b *backend, timeout time.Duration) *clusterv3.Cluster {
				return &clusterv3.Cluster{
					Name: "dns", ConnectTimeout: durationpb.New(timeout),
					ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS},
					LoadAssignment:       endpoints("dns", b),
				}
			}
			s.push(func(w world) {
				w.set("dns", dns(first, time.Second))
				w.set("one", waiting("one", "", time.Second))
			})
			s.step("there is a Cluster that finds its endpoints itself", all(s.hasHost("dns", first),
				s.has(activeCluster, "one", `"connect_timeout":"1s"`)))
			s.push(func(w world) { w.set("routes", routesTo("routes", "dns")) })
			s.step("requests reach its endpoints", s.reaches(first))
			s.push(func(w world) {
				w.set("dns", dns(second, 2*time.Second))
				w.set("twin", waiting("twin", "one", time.Second))
				w.set("one", waiting("one", "", 2*time.Second))
				w.set("one", endpoints("one", first))
			})
			s.step("all Clusters have changed", all(s.reaches(second),
				s.has(activeCluster, "twin", `"connect_timeout":"1s"`), s.hasHost("twin", first),
				s.has(activeCluster, "one", `"connect_timeout":"2s"`), s.hasHost("one", first)))
		},
	})
}

// A new Cluster waits for its endpoints, and a Listener that changes for its routes and its certificate. Until then
// requests reach the one before.
func TestAListenerWarms(t *testing.T) {
	ca := peers.NewCertifier(t)
	certificates := map[string]*tlsv3.Secret{}
	for _, name := range []string{"blue", "green"} {
		cert, key := ca.Issue(name, "", time.Now().Add(time.Hour))
		certificates[name] = &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(t, cert), PrivateKey: inline(t, key),
		}}}
	}
	play(t, scenario{
		// In SotW, the relay may request the routes again without those that are not there, with a newer response.
		unversioned: severalNames,
		// They say nothing of a name that does not exist yet.
		planes: []kind{snapshots},
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			secure := s.newAddress()
			s.push(func(w world) {
				s.shop(w, "one", first)
				s.clusterWith(w, "two", second)
			})
			s.step("requests reach the first backend", s.reaches(first))
			s.send()

			s.push(func(w world) { w.set("late", s.cluster("late", "")) })
			s.step("a Cluster waits for its endpoints", s.shows(warmingCluster, "late"))
			s.push(func(w world) { w.set("late", endpoints("late", second)) })
			s.step("the Cluster has its endpoints", all(s.lacks(warmingCluster, "late"), s.hasHost("late", second)))

			s.push(func(w world) { w.set("shop", s.listener("shop", s.address, "others")) })
			s.step("the Listener waits for its routes", all(s.shows(warmingListener, "shop"), s.reaches(first)))
			s.push(func(w world) { w.set("others", routesTo("others", "two")) })
			s.step("requests use the other routes", all(s.lacks(warmingListener, "shop"), s.reaches(second)))

			s.push(func(w world) { w.set("secure", s.secured(s.listener("secure", secure, "others"), "blue")) })
			s.step("another Listener waits for its certificate", all(s.shows(warmingListener, "secure"), s.reaches(second)))
			s.push(func(w world) { w.set("blue", certificates["blue"]) })
			s.step("requests use the certificate", all(s.lacks(warmingListener, "secure"), s.certified(secure, "blue")))
			s.push(func(w world) { w.set("secure", s.secured(s.listener("secure", secure, "routes"), "green")) })
			s.step("it waits for another certificate and other routes", all(s.shows(warmingListener, "secure"), s.certified(secure, "blue")))
			s.push(func(w world) { w.set("green", certificates["green"]) })
			s.step("requests use the other certificate", all(s.lacks(warmingListener, "secure"), s.certified(secure, "green")))
		},
	})
}

// inline returns the content of a file.
func inline(t testing.TB, file string) *corev3.DataSource {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: text}}
}

// secured returns a Listener with TLS, and with a certificate that comes by SDS.
func (s *side) secured(l *listenerv3.Listener, secret string) *listenerv3.Listener {
	l.FilterChains[0].TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(&tlsv3.DownstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{
				Name: secret, SdsConfig: s.source(),
			}}},
		})},
	}
	return l
}

// certified returns a condition: a listener of Envoy has the certificate with a name.
func (s *side) certified(address, name string) func() error {
	return func() error {
		client := &http.Client{Timeout: s.client.Timeout, Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
				return equal("the certificate", state.PeerCertificates[0].Subject.CommonName, name)
			}},
		}}
		_, err := visit(client, "https://"+address+"/")
		return err
	}
}
