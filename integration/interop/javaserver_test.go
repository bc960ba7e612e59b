package interop

// grpc-java's server with xDS, whose listener comes from the control plane.

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// The listener of the server has the name that the bootstrap's template makes of an address. It is this one,
// although the server listens on 127.0.0.1.
const (
	serverTemplate = "server/%s"
	serverAddress  = "0.0.0.0"
	serverName     = "server/" + serverAddress + ":0"
)

// serverListener returns the listener of the server, which gets its routes by RDS.
func serverListener(t testing.TB) *listenerv3.Listener {
	t.Helper()
	manager := &hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: "server", ConfigSource: ads()}},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: toAny(t, &routerv3.Router{})},
		}},
	}
	return &listenerv3.Listener{
		Name: serverName,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: serverAddress, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0},
		}}},
		FilterChains: []*listenerv3.FilterChain{{
			Name: "all",
			Filters: []*listenerv3.Filter{{
				Name:       "envoy.filters.network.http_connection_manager",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: toAny(t, manager)},
			}},
		}},
	}
}

// serverRoutes returns the routes of the server, which accepts the methods with a prefix.
func serverRoutes(prefix string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name: "server",
		VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: prefix}},
			Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
		}}}},
	}
}

// javaServer is a running server of grpc-java.
type javaServer struct {
	t        testing.TB
	statuses <-chan serverStatus
}

// serverStatus is a line that the server prints.
type serverStatus struct {
	Serving bool   `json:"serving"`
	Port    int    `json:"port"`
	Error   string `json:"error"`
}

func startJavaServer(t testing.TB, bootstrap string) *javaServer {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal([]byte(bootstrap), &all); err != nil {
		t.Fatal(err)
	}
	all["server_listener_resource_name_template"] = serverTemplate
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	command := javaPrograms.Command("XdsServer", "the server")
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "GRPC_XDS_BOOTSTRAP_CONFIG="+string(text))
	lines, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, "grpc-java's server", cmd)
	statuses := make(chan serverStatus, 10)
	go func() {
		defer close(statuses)
		peers.EachLine(lines, func(s serverStatus, err error) {
			if err != nil {
				s.Error = err.Error()
			}
			statuses <- s
		})
	}()
	return &javaServer{t: t, statuses: statuses}
}

// await waits until the server serves, or until it does not.
func (j *javaServer) await(serving bool) (port int) {
	j.t.Helper()
	var last serverStatus
	for {
		s, err := peers.Receive(j.statuses)
		if err != nil {
			j.t.Fatalf("waiting until serving is %v: %v; the last status is %+v", serving, err, last)
		}
		if last = s; s.Serving == serving {
			return s.Port
		}
	}
}

func dialServer(t testing.TB, port int) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(soon))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestServerOfGRPCJava checks that a server follows its listener and routes the same directly and through the
// relay.
func TestServerOfGRPCJava(t *testing.T) {
	t.Parallel()
	required(t, "grpc-java", prepareJava)
	compare(t, "go-control-plane, linear cache", "grpc-java's server", ways, func(t *testing.T, w way, record func(string, observation)) {
		p := startPlane(t, kind{name: w.name, form: w.form, start: startLinear})
		address := p.address
		if w.relayed {
			address = startRelay(t, address).address
		}
		s := newScene(t, p.controlPlane)
		since := time.Now()
		seen := func(scenario, text string) {
			record(scenario, observation{text: text, took: time.Since(since)})
			since = time.Now()
		}

		s.put(listenerType, serverName, serverListener(t))
		s.put(routeType, "server", serverRoutes(""))
		s.push()
		server := startJavaServer(t, bootstrap(t, address))
		conn := dialServer(t, server.await(true))
		seen("server starts", "")
		await := func(accept func(error) bool) codes.Code {
			t.Helper()
			var outcome error
			eventually(t, "RPCs have another outcome", func() error {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if outcome = conn.Invoke(ctx, method, &emptypb.Empty{}, &wrapperspb.StringValue{}); accept(outcome) {
					return nil
				}
				return fmt.Errorf("the outcome is %w", outcome)
			})
			return status.Code(outcome)
		}
		succeeds, fails := func(err error) bool { return err == nil }, func(err error) bool { return err != nil }
		await(succeeds)

		s.put(routeType, "server", serverRoutes("/another.Service/"))
		s.push()
		since = time.Now()
		seen("routes of a server change", await(fails).String())
		s.put(routeType, "server", serverRoutes(""))
		s.push()
		await(succeeds)

		s.drop(listenerType, serverName)
		s.push()
		since = time.Now()
		server.await(false)
		seen("listener of a server goes", await(fails).String())

		s.put(listenerType, serverName, serverListener(t))
		s.push()
		since = time.Now()
		conn = dialServer(t, server.await(true))
		await(succeeds)
		seen("listener of a server returns", "")
	})
}
