package interop

// Istio's discovery server, which runs in the test's process.

import (
	"fmt"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	networking "istio.io/api/networking/v1alpha3"
	"istio.io/istio/pilot/pkg/model"
	"istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/config"
	"istio.io/istio/pkg/config/host"
	"istio.io/istio/pkg/config/protocol"
	"istio.io/istio/pkg/config/schema/gvk"
	"istio.io/istio/pkg/log"
)

// istio is Istio with the services shop, one and two. A VirtualService sends RPCs for shop to one or two.
type istio struct {
	*xds.FakeDiscoveryServer
	t testing.TB
}

const (
	namespace   = "default"
	servicePort = 7070 // the port in the service's name; endpoints have other ports
	portName    = "grpc"
)

func hostname(service string) string {
	return fmt.Sprintf("%s.%s.svc.cluster.local", service, namespace)
}

func init() {
	// Istio logs to standard output, which has the output of the tests.
	o := log.DefaultOptions()
	o.SetDefaultOutputLevel(log.OverrideScopeName, log.NoneLevel)
	if err := log.Configure(o); err != nil {
		panic(err)
	}
}

func startIstio(t testing.TB) controlPlane {
	t.Helper()
	i := &istio{FakeDiscoveryServer: xds.NewFakeDiscoveryServer(t, xds.FakeOptions{}), t: t}
	for n, service := range []string{"shop", "one", "two"} {
		i.MemRegistry.AddService(&model.Service{
			Attributes:     model.ServiceAttributes{Name: service, Namespace: namespace},
			Hostname:       host.Name(hostname(service)),
			DefaultAddress: fmt.Sprintf("127.0.5.%d", n+1),
			Ports:          model.PortList{{Name: portName, Port: servicePort, Protocol: protocol.GRPC}},
		})
	}
	return i
}

func (i *istio) register(s *grpc.Server) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, i.Discovery)
}

func (i *istio) target() string { return fmt.Sprintf("xds:///%s:%d", hostname("shop"), servicePort) }

func (i *istio) show(cluster string, at *backend) {
	i.MemRegistry.SetEndpoints(hostname(cluster), namespace, []*model.IstioEndpoint{
		{Addresses: []string{"127.0.0.1"}, EndpointPort: at.port, ServicePortName: portName},
	})
	i.set(gvk.VirtualService, "shop", &networking.VirtualService{
		Hosts: []string{hostname("shop")},
		Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{
			{Destination: &networking.Destination{Host: hostname(cluster)}},
		}}},
	})
}

// set creates or updates an object of Istio's configuration.
func (i *istio) set(kind config.GroupVersionKind, name string, spec config.Spec) {
	change := i.Store().Create
	if old := i.Store().Get(kind, name, namespace); old != nil {
		change = i.Store().Update
	}
	_, err := change(config.Config{Meta: config.Meta{GroupVersionKind: kind, Name: name, Namespace: namespace}, Spec: spec})
	if err != nil {
		i.t.Fatal(err)
	}
}
