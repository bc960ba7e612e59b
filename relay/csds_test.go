package relay

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A reload without `csds` ends it for connections that are open, too.
func TestCSDSOfAListenerEndsWithAReload(t *testing.T) {
	r := startReload(t)
	const withCSDS = `
listeners: [{address: "%[1]s", csds: true}]
authorities: [{name: a, servers: [{address: "%[2]s"}]}]
old_style_names: [{authority: a}]
`
	r.mustReload(withCSDS, r.listen, r.plane.address)
	conn := connectTo(t, r.listen)
	open := hold(t, conn, false, &corev3.Node{Id: "edge"})
	open.awaitHas(t, "with csds", map[string]string{"m1": "first", "m2": "first"})
	service := statusv3.NewClientStatusDiscoveryServiceClient(conn)
	if _, err := service.FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	stream, err := service.StreamClientStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&statusv3.ClientStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	r.mustReload(reloadConfig, r.listen, r.plane.address)
	if _, err := service.FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a call gets %v, want UNIMPLEMENTED", err)
	}
	if err := stream.Send(&statusv3.ClientStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unimplemented {
		t.Errorf("a request on an open stream gets %v, want UNIMPLEMENTED", err)
	}
	open.mustBeOpen(t, "without csds")
}
