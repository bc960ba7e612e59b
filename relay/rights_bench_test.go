package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// A stream with 1,000 names starts and receives all of them, alternately from a relay without rights and from one
// with 50 rules, of which the last decides. "x" is the ratio of the medians, with rules to without. All clients have
// one identity, or each has another one, which rules read.
func BenchmarkStreamStartUnderRights(b *testing.B) {
	const names, rules = 1000, 50
	const nobody, anybody = `identity.subject == "nobody"`, `has(identity.subject)`
	for _, of := range []struct{ names, spelled string }{{"old", "team-%d/service-%d"}, {"xdstp", "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/team-%d/service-%d"}} {
		var all []string
		for i := range names {
			all = append(all, fmt.Sprintf(of.spelled, i%10, i))
		}
		for _, kind := range []struct{ rights, when, allow string }{
			{"places", `authority == "authority-%d"`, anybody},
			{"identities", `identity.subject == "other-%d"`, anybody},
			{"names", `name.contains("/other-%d/")`, anybody},
			{"names of identities", `name.startsWith(identity.subject + "/other-%d/")`, `name.contains("team-") && !name.contains(identity.subject)`},
			{"expressions", `name.matches("^other-%d/.*")`, anybody},
			{"expressions of identities", `identity.subject != "somebody" && name.matches("^other-%d/.*")`, anybody},
		} {
			for _, who := range []string{"same", "new"} {
				b.Run(of.names+"/"+kind.rights+"/"+who, func(b *testing.B) {
					config := "rights:\n"
					for i := range rules - 1 {
						config += fmt.Sprintf("  - when: %q\n    allow: %s\n", fmt.Sprintf(kind.when, i), nobody)
					}
					config += "  - allow: " + fmt.Sprintf("%q", kind.allow) + "\n"
					starts := [2]func(){benchStarts(b, all, "", "", who == "new"), benchStarts(b, all, "", config, who == "new")}
					var took [2][]time.Duration
					turn := 0
					for b.Loop() {
						turn = 1 - turn // neither is always the first
						for range starts {
							turn = 1 - turn
							began := time.Now()
							starts[turn]()
							took[turn] = append(took[turn], time.Since(began))
						}
					}
					median := func(all []time.Duration) float64 {
						slices.Sort(all)
						return float64(all[len(all)/2])
					}
					b.ReportMetric(median(took[1])/median(took[0]), "x")
				})
			}
		}
	}
}

// benchStarts returns a function that starts a stream with names, from a separate relay. keys are of the authority,
// after others.
func benchStarts(b *testing.B, names []string, keys, rights string, everNew bool) (start func()) {
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
	config := "listeners: [{address: \"127.0.0.1:0\"}]\nauthorities: [{name: a, directory: files" + keys + "}]\nold_style_names: [{authority: a}]\n" + rights
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
	b.Cleanup(s.close)
	conn, err := grpc.NewClient("passthrough:///relay", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.lis.DialContext(ctx) }))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	start = func() {
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
	return start
}
