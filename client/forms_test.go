package client

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	"google.golang.org/grpc"

	"github.com/xds-relay/xds-relay/internal/testplane"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// servicesOnly is a server without the aggregated service, and its address.
func servicesOnly(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String()
}

func TestGetFromTheServiceOfAType(t *testing.T) {
	plane := testplane.NewSnapshot(t)
	plane.Set(t, "1", clusters("a", "b"))
	address := servicesOnly(t, func(s *grpc.Server) { clusterservice.RegisterClusterDiscoveryServiceServer(s, plane) })
	for _, protocol := range bothProtocols {
		query := testQuery(protocol, xdstype.ClusterV3)
		query.Services = true
		answer, err := Get(t.Context(), Server{Address: address}, query, long)
		if err != nil || namesOf(answer.Resources) != "a b" {
			t.Errorf("%v: %q, %v", protocol, namesOf(answer.Resources), err)
		}
	}
	query := testQuery(Delta, xdstype.Prefix+"example.Unheard")
	query.Services = true
	if _, err := Get(t.Context(), Server{Address: address}, query, long); err == nil || !strings.Contains(err.Error(), "no discovery service of its own") {
		t.Errorf("a type without a service: %v", err)
	}
}

// onlySotW has one method of the service of listeners.
type onlySotW struct {
	listenerservice.UnimplementedListenerDiscoveryServiceServer
}

// StreamListeners answers nothing.
func (onlySotW) StreamListeners(stream listenerservice.ListenerDiscoveryService_StreamListenersServer) error {
	<-stream.Context().Done()
	return nil
}

// The advice about the form is to use one that the server has: it does not lead in a circle.
func TestUnimplementedNamesAFormThatTheServerHas(t *testing.T) {
	plane := testplane.NewSnapshot(t)
	services := servicesOnly(t, func(s *grpc.Server) { clusterservice.RegisterClusterDiscoveryServiceServer(s, plane) })
	sotw := servicesOnly(t, func(s *grpc.Server) { listenerservice.RegisterListenerDiscoveryServiceServer(s, onlySotW{}) })
	other := servicesOnly(t, func(*grpc.Server) {})
	ads := testplane.Listen(t, &puppet{}) // delta only
	for _, tt := range []struct {
		name, address, typeURL string
		form                   form
		want                   string
	}{
		{"no ADS, delta", services, xdstype.ClusterV3, form{Delta, false}, "; try --aggregated=false"},
		{"no ADS, SotW", services, xdstype.ClusterV3, form{SotW, false}, "; try --aggregated=false"},
		{"one method", sotw, xdstype.ListenerV3, form{Delta, false}, "; try --protocol sotw --aggregated=false"},
		{"one method, of the service", sotw, xdstype.ListenerV3, form{Delta, true}, "; try --protocol sotw"},
		{"delta ADS", ads, xdstype.ClusterV3, form{SotW, false}, "; try --protocol delta"},
		{"delta ADS, by service", ads, xdstype.ClusterV3, form{SotW, true}, "; try --protocol delta --aggregated=true"},
		{"no xDS", other, xdstype.ClusterV3, form{SotW, false}, "and no other form for this type"},
	} {
		query := testQuery(tt.form.protocol, tt.typeURL)
		query.Services = tt.form.services
		_, err := Get(t.Context(), Server{Address: tt.address}, query, long)
		if unimplemented := (*UnimplementedError)(nil); !errors.As(err, &unimplemented) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestErrorsSayWhatIsThere(t *testing.T) {
	site := httptest.NewServer(http.NotFoundHandler())
	defer site.Close()
	closing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer closing.Close()
	go func() {
		for {
			c, err := closing.Accept()
			if err != nil {
				return
			}
			buffer := make([]byte, 24) // of HTTP/2's preface
			_, _ = c.Read(buffer)
			c.Close()
		}
	}()
	for address, want := range map[string]string{
		site.Listener.Addr().String(): "an HTTP server, such as the admin listener of a relay",
		closing.Addr().String():       "TLS? the server may want it: --tls",
	} {
		_, err := Get(t.Context(), Server{Address: address}, testQuery(Delta, xdstype.ClusterV3), 5*time.Second)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "desc =") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
