package relay

import (
	"log/slog"
	"net"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/loadreport"
)

// loadPlane is a control plane that requests load reports. opened and ended receive a value for each of its streams.
type loadPlane struct {
	lrsv3.UnimplementedLoadReportingServiceServer
	opened, ended chan struct{}
}

// StreamLoadStats implements the service.
func (p *loadPlane) StreamLoadStats(stream lrsv3.LoadReportingService_StreamLoadStatsServer) error {
	p.opened <- struct{}{}
	defer func() { p.ended <- struct{}{} }()
	if err := stream.Send(&lrsv3.LoadStatsResponse{SendAllClusters: true, LoadReportingInterval: durationpb.New(1 << 40)}); err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return nil // the relay ends the stream
		}
	}
}

// A reload that turns load reports off ends the stream to the control plane, and one that turns them on again opens
// another. The client's stream goes on.
func TestAReloadTurnsLoadReportsOffAndOn(t *testing.T) {
	plane := &loadPlane{opened: make(chan struct{}, 10), ended: make(chan struct{}, 10)}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	lrsv3.RegisterLoadReportingServiceServer(g, plane)
	go func() { _ = g.Serve(lis) }()
	t.Cleanup(g.Stop)
	const config = `
listeners: [{address: "LISTEN"}]
authorities:
  - {name: a, servers: [{address: "ADDRESS"}], load_reports: SWITCH}
  - {name: other, servers: [{address: "127.0.0.1:1"}]}
old_style_names: [{authority: a}]
`
	listen := freeAddress(t)
	with := func(is string) string {
		return strings.NewReplacer("LISTEN", listen, "ADDRESS", lis.Addr().String(), "SWITCH", is).Replace(config)
	}
	r, address := runRelay(t, with("on"), slog.New(slog.DiscardHandler))
	reload := func(is string) {
		t.Helper()
		cfg, err := configs.Parse("relay.yaml", []byte(with(is)))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Reload(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := lrsv3.NewLoadReportingServiceClient(connectTo(t, address)).StreamLoadStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&lrsv3.LoadStatsRequest{Node: &corev3.Node{Id: "edge", ClientFeatures: []string{loadreport.SupportsAll}}}); err != nil {
		t.Fatal(err)
	}
	if resp, err := stream.Recv(); err != nil || !resp.GetSendAllClusters() {
		t.Fatalf("the client is asked for %v (%v)", resp, err)
	}
	<-plane.opened
	reload("off")
	<-plane.ended
	reload("on")
	<-plane.opened
	if err := stream.Send(&lrsv3.LoadStatsRequest{}); err != nil {
		t.Errorf("the client's stream has ended: %v", err)
	}
}
