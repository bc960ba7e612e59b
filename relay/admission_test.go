package relay

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/process"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// While memory use is above admission.memory of the container's limit, the relay refuses further streams. Open
// streams continue.
func TestNoStreamsAreAdmittedWithoutMemory(t *testing.T) {
	t.Parallel()
	cfg, err := configs.Parse("relay.yaml", []byte(`
listeners: [{address: "127.0.0.1:0", admission: {memory: 0.5}}]
admin: {address: "127.0.0.1:0"}
authorities: [{name: a, directory: `+t.TempDir()+`}]
old_style_names: [{authority: a}]
`))
	if err != nil {
		t.Fatal(err)
	}
	const limit = 1 << 40
	var used atomic.Uint64
	memory := process.NewMemory(func() process.Usage { return process.Usage{Used: used.Load(), Limit: limit} })
	r, err := New(cfg, Options{Log: slog.New(slog.DiscardHandler), Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := r.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.Close()
	}()
	open := func() (discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, error) {
		s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connectTo(t, r.Addresses()[0])).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		// If this fails, Recv says why.
		_ = s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "n"}, TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: []string{"x"}})
		_, err = s.Recv()
		return s, err
	}
	stays, err := open()
	if err != nil {
		t.Fatal(err)
	}
	used.Store(limit * 6 / 10)
	await(t, "a further stream is refused", func() bool {
		_, err := open()
		return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "no memory for further streams")
	})
	if err := stays.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: []string{"y"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stays.Recv(); err != nil {
		t.Errorf("the stream that there is: %v", err)
	}
	if _, text := ask(t, r, "/metrics"); strings.Contains(text, `xds_relay_downstream_admission_refused_total{reason="memory"} 0`) {
		t.Error("the metrics do not count it")
	}
	used.Store(limit * 4 / 10)
	await(t, "a further stream is admitted", func() bool {
		_, err := open()
		return err == nil
	})
}
