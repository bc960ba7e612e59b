package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/fstest"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/xdstype"
)

// A stream with 1,000 names begins, and has all of them: without rights, and under 50 rules of which
// the last decides. Clients come back with one identity, or each has another one, which rules read.
func BenchmarkStreamStartUnderRights(b *testing.B) {
	const names, rules = 1000, 50
	for _, of := range []struct{ names, spelled string }{{"old", "team-%d/service-%d"}, {"xdstp", "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/team-%d/service-%d"}} {
		var all []string
		for i := range names {
			all = append(all, fmt.Sprintf(of.spelled, i%10, i))
		}
		for _, kind := range []struct{ rights, when string }{
			{"none", ""},
			{"places", `authority == "authority-%d"`},
			{"names", `name.contains("/other-%d/")`},
			{"expressions", `name.matches("^other-%d/.*")`},
		} {
			for _, who := range []string{"same", "new"} {
				b.Run(of.names+"/"+kind.rights+"/"+who, func(b *testing.B) {
					benchStart(b, all, kind.when, rules, who == "new")
				})
			}
		}
	}
}

func benchStart(b *testing.B, names []string, when string, rules int, everNew bool) {
	b.Helper()
	files := fstest.MapFS{}
	var docs strings.Builder
	for _, name := range names {
		text, err := protojson.Marshal(packed(xdstype.EndpointsV3, &endpointv3.ClusterLoadAssignment{ClusterName: name}))
		if err != nil {
			b.Fatal(err)
		}
		fmt.Fprintf(&docs, "---\n%s\n", text)
	}
	files["all.yaml"] = &fstest.MapFile{Data: []byte(docs.String())}
	config := "listeners: [{address: \"127.0.0.1:0\"}]\nauthorities: [{name: a, directory: files}]\nold_style_names: [{authority: a}]\n"
	if when != "" {
		config += "rights:\n"
		for i := range rules - 1 {
			config += fmt.Sprintf("  - when: %q\n    allow: identity.subject == \"nobody\"\n", fmt.Sprintf(when, i))
		}
		config += "  - allow: has(identity.subject)\n"
	}
	cfg, err := configs.Parse("relay.yaml", []byte(config))
	if err != nil {
		b.Fatal(err)
	}
	r, err := New(cfg, Options{Files: files, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	s := &servedRelay{relay: r}
	n := 0
	s.open(downstream.ListenerOptions{Identify: func(identity.Proof) (*identity.Identity, error) {
		if everNew {
			n++
		}
		return &identity.Identity{Source: identity.MTLS, Subject: fmt.Sprint("client-", n)}, nil
	}})
	defer s.close()
	conn, err := grpc.NewClient("passthrough:///relay", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.lis.DialContext(ctx) }))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	start := func() {
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.EndpointsV3, ResourceNamesSubscribe: names}); err != nil {
			b.Fatal(err)
		}
		for got := 0; got < len(names); {
			resp, err := stream.Recv()
			if err != nil || len(resp.GetResourceErrors())+len(resp.GetRemovedResources()) > 0 {
				b.Fatal(err, len(resp.GetResourceErrors()), len(resp.GetRemovedResources()))
			}
			got += len(resp.GetResources())
		}
		_ = stream.CloseSend()
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
	}
	start()
	start() // from now on the list is known
	for b.Loop() {
		start()
	}
}
