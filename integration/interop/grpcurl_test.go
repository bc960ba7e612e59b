package interop

// An operator's use of grpcurl to see the resources of clients. grpcurl learns the relay's services only by
// reflection.

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

func TestGrpcurlShowsWhatClientsHave(t *testing.T) {
	t.Parallel()
	if err := peers.Build("grpcurl", "grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl"); err != nil {
		t.Fatal(err)
	}
	clusters := cachev3.NewLinearCache(resource.ClusterType, cachev3.WithInitialResources(map[string]types.Resource{
		"shop": &clusterv3.Cluster{Name: "shop", AltStatName: "what-it-is"},
	}))
	plane := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(plane, serverv3.NewServer(t.Context(), clusters, nil))
	r := startRelay(t, serve(t, plane).String())

	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "n1"}, TypeUrl: resource.ClusterType, ResourceNamesSubscribe: []string{"shop"}}); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ClusterType, ResponseNonce: resp.GetNonce()}); err != nil {
		t.Fatal(err)
	}

	const service = "envoy.service.status.v3.ClientStatusDiscoveryService"
	grpcurl := func(args ...string) (string, error) {
		out, err := exec.Command(peers.Program("grpcurl"), append([]string{"-plaintext"}, args...)...).CombinedOutput()
		return string(out), err
	}
	if list, err := grpcurl(r.Admin, "list"); err != nil || !strings.Contains(list, service) {
		t.Errorf("the services are %s (%v)", list, err)
	}
	for _, method := range []string{"FetchClientStatus", "StreamClientStatus"} {
		for _, request := range []string{`{}`, `{"node_matchers": [{"node_id": {"exact": "n1"}}]}`} {
			eventually(t, method+" shows the cluster", func() error {
				out, err := grpcurl("-d", request, r.Admin, service+"/"+method)
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				var status struct {
					Config []struct {
						GenericXdsConfigs []struct {
							Name, ClientStatus string
							XdsConfig          struct{ AltStatName string }
						}
					}
				}
				if err := json.Unmarshal([]byte(out), &status); err != nil {
					return err
				}
				if len(status.Config) == 1 && len(status.Config[0].GenericXdsConfigs) == 1 {
					if g := status.Config[0].GenericXdsConfigs[0]; g.Name == "shop" && g.ClientStatus == "ACKED" && g.XdsConfig.AltStatName == "what-it-is" {
						return nil
					}
				}
				return fmt.Errorf("the output is %s", out)
			})
		}
	}
}
