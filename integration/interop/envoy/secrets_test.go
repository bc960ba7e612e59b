package envoy

// Certificates and CAs that come by SDS.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// identified returns a client whose connections have a certificate of the CA that the server names, if any. If together,
// a connection fails if the server's own certificate is of another CA.
func identified(together bool, all ...*identity) *http.Client {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		wanted := ""
		dialer := &tls.Dialer{Config: &tls.Config{
			RootCAs: pool(all...), ServerName: serverName,
			GetClientCertificate: func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
				for _, i := range all {
					if request.SupportsCertificate(&i.cert) == nil {
						wanted = i.name
						return &i.cert, nil
					}
				}
				return nil, errors.New("the server wants a certificate of an unknown CA")
			},
		}}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if issuer := conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Issuer.CommonName; together && issuer != wanted {
			_ = conn.Close()
			return nil, fmt.Errorf("the server has a certificate of %s and wants one of %s", issuer, wanted)
		}
		return conn, nil
	}
	return &http.Client{Timeout: peers.Patience, Transport: &http.Transport{DisableKeepAlives: true, DialTLSContext: dial}}
}

// secureBackend returns the address of a backend that answers every request with the name of the CA of the client's
// certificate.
func (s *side) secureBackend() string {
	s.Helper()
	if s.shared.secure == "" {
		own := s.identity("backend")
		s.shared.secure = peers.Address(s.shared.t)
		listener := tls.NewListener(peers.Listen(s.shared.t, s.shared.secure), &tls.Config{
			Certificates: []tls.Certificate{own.cert}, ClientAuth: tls.RequireAnyClientCert,
		})
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(r.TLS.PeerCertificates[0].Issuer.CommonName))
		})}
		server.SetKeepAlivesEnabled(false) // each request shows which certificate is in use
		go func() { _ = server.Serve(listener) }()
		s.shared.t.Cleanup(func() { _ = server.Close() })
	}
	return s.shared.secure
}

// secureCluster returns a cluster whose certificate is a secret.
func (s *side) secureCluster(name, certificate string) *clusterv3.Cluster {
	c := s.cluster(name, "")
	c.TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(&tlsv3.UpstreamTlsContext{
			Sni: serverName,
			CommonTlsContext: &tlsv3.CommonTlsContext{
				TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret(certificate, s.source())},
				ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
					TrustedCa: inlined(s.identity("backend").caPEM),
				}},
			},
		})},
	}
	return c
}

// A Listener's certificate and the CA of its clients are rotated together, while requests run. A Cluster shares the
// certificate. On an aggregated stream they come together, and no connection sees one without the other.
func TestCertificateAndCARotateTogether(t *testing.T) {
	play(t, scenario{planes: []kind{snapshots, scripted}, only: func(k kind, f form) bool {
		return k == scripted || f.aggregated // the streams of single types are the same with both
	}, unversioned: severalNames, run: func(s *side) {
		generations := []*identity{s.identity("ca-1"), s.identity("ca-2"), s.identity("ca-3")}
		client, target := identified(s.form.aggregated, generations...), "https://"+s.address+"/"
		secure := &routev3.Route{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/secure"}},
			Action: hostTo("", "secure").Routes[0].Action,
		}
		rotate := func(w world, to *identity) {
			w.set("own", to.certificate("own"))
			w.set("clients", to.roots("clients"))
		}
		// Both Envoy's listener and its cluster have the certificate.
		uses := func(i *identity) func() error {
			return func() error {
				issuer, err := visit(client, target+"secure")
				if err == nil {
					err = equal("the CA of the client's certificate", issuer, i.name)
				}
				if err != nil {
					return err
				}
				return s.handshakesWith(s.address, i)
			}
		}
		s.push(func(w world) {
			l := s.listener("shop", s.address, "routes")
			l.FilterChains[0].TransportSocket = &corev3.TransportSocket{
				Name: "envoy.transport_sockets.tls",
				ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(&tlsv3.DownstreamTlsContext{
					RequireClientCertificate: wrapperspb.Bool(true),
					CommonTlsContext: &tlsv3.CommonTlsContext{
						TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret("own", s.source())},
						ValidationContextType: &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
							ValidationContextSdsSecretConfig: secret("clients", s.source()),
						},
					},
				})},
			}
			s.shop(w, "one", s.backend("first"))
			w.set("shop", l)
			routes := routesTo("routes", "one")
			routes.VirtualHosts[0].Routes = append([]*routev3.Route{secure}, routes.VirtualHosts[0].Routes...)
			w.set("routes", routes)
			w.set("secure", s.secureCluster("secure", "own"))
			w.set("secure", endpoints("secure", &backend{address: s.secureBackend()}))
			rotate(w, generations[0])
		})
		s.step("requests use the first certificates", uses(generations[0]))
		s.load = generateSome(s, client, target, 50) // handshakes are costly
		for _, next := range generations[1:] {
			s.push(func(w world) { rotate(w, next) })
			s.step("requests use those of "+next.name, uses(next))
		}
	}})
}

// handshakesWith returns an error unless the server at an address has an identity's certificate.
func (s *side) handshakesWith(address string, i *identity) error {
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pool(i), ServerName: serverName, Certificates: []tls.Certificate{i.cert}})
	if err != nil {
		return fmt.Errorf("the certificate of %s: %w", i.name, err)
	}
	return conn.Close()
}

// A Listener and a Cluster that refer to a secret of which the control plane says nothing warm, until it is created.
// Nothing else waits with them. Then it is removed.
func TestASecretDoesNotExistYet(t *testing.T) {
	play(t, scenario{unversioned: severalNames, run: func(s *side) {
		first, second := s.backend("first"), s.backend("second")
		secure := s.newAddress()
		s.plane.script.change(func() { s.plane.script.mute = func(_, name string) bool { return name == "own" } })
		s.push(func(w world) { s.shop(w, "one", first) })
		s.step("requests reach the first backend", s.reaches(first))
		s.send()
		s.push(func(w world) {
			routes := routesTo("static", "secure")
			routes.ValidateClusters = wrapperspb.Bool(false) // it warms
			l := listenerOf("secure", secure, s.manager(&hcmv3.HttpConnectionManager{
				RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes},
			}))
			l.FilterChains[0].TransportSocket = encrypted(&tlsv3.CommonTlsContext{
				TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret("own", s.source())},
			})
			w.set("secure", l)
			w.set("secure", s.secureCluster("secure", "own"))
			w.set("secure", endpoints("secure", &backend{address: s.secureBackend()}))
		})
		s.step("the Listener and the Cluster warm", all(s.shows(warmingListener, "secure"), s.shows(warmingCluster, "secure")))
		s.push(func(w world) { w.set("one", endpoints("one", second)) })
		s.step("requests reach other endpoints", s.reaches(second))
		own := s.identity("ca-1")
		s.push(func(w world) { w.set("own", own.certificate("own")) })
		s.step("requests use the certificate", func() error {
			issuer, err := visit(identified(false, own), "https://"+secure+"/")
			if err != nil {
				return err
			}
			return equal("the CA of the client's certificate", issuer, own.name)
		})
		s.push(func(w world) {
			w.remove("own", &tlsv3.Secret{})
			w.set("one", endpoints("one", first))
		})
		s.step("the secret is removed", s.reaches(first))
	}})
}

// Two Listeners have secrets of this workload. A third has one of another workload, for which the control plane ends
// the stream, as SPIRE does: the two do not wait for it. Each secret has a stream of its own.
func TestTheControlPlaneEndsTheStreamForOneSecret(t *testing.T) {
	play(t, scenario{
		forms: []form{{true, false}, {false, false}},
		relay: func(_ *side, config peers.Config) {
			config["authorities"].([]any)[0].(peers.Config)["servers"].([]any)[0].(peers.Config)["aggregated"] = false
		},
		unversioned: severalNames,
		run: func(s *side) {
			const foreign = "foreign"
			refused := make(chan struct{}, 1)
			s.plane.script.change(func() {
				s.plane.script.refuse = func(h heard) error {
					if h.typeURL != resource.SecretType || !slices.Contains(h.names, foreign) {
						return nil
					}
					select {
					case refused <- struct{}{}:
					default:
					}
					return status.Errorf(codes.InvalidArgument, "workload is not authorized for the requested identities [%q]", foreign)
				}
			})
			serve := func(w world, name, address string) {
				l := listenerOf(name, address, s.manager(&hcmv3.HttpConnectionManager{
					RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routesTo("static", "one")},
				}))
				l.FilterChains[0].TransportSocket = encrypted(&tlsv3.CommonTlsContext{
					TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret(name, s.source())},
				})
				w.set(name, l)
			}
			addresses := []string{s.newAddress(), s.newAddress(), s.newAddress()}
			s.push(func(w world) { s.shop(w, "one", s.backend("first")) })
			s.step("requests reach the backend", s.reaches(s.backend("first")))
			s.push(func(w world) { serve(w, foreign, addresses[0]) })
			s.await("the control plane has refused the foreign secret", func() error {
				select {
				case <-refused:
					return nil
				default:
					return errors.New("it has not")
				}
			})
			one, two := s.identity("ca-1"), s.identity("ca-2")
			s.push(func(w world) {
				serve(w, "mine", addresses[1])
				serve(w, "own", addresses[2])
				w.set("mine", one.certificate("mine"))
				w.set("own", two.certificate("own"))
			})
			s.step("there is a Listener with the first secret", s.handshakes(addresses[1], one))
			s.step("there is a Listener with the second", s.handshakes(addresses[2], two))
			s.push(func(w world) { w.set("mine", two.certificate("mine")) })
			s.step("a secret changes", s.handshakes(addresses[1], two))
		},
	})
}
