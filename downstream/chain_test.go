package downstream

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/internal/chain"
)

// On every service, the relay knows through which other relays a request comes, and refuses the request if it is one of
// them.
func TestRelaysAreKnownAtEveryDoor(t *testing.T) {
	c := newTestCache(&recordingSource{}, 1000)
	defer c.Close()
	seen := make(chan chain.Chain, 1)
	server := NewServer(c, func(client Client) Names {
		seen <- client.Through
		return newClusterNames(client)
	}, Options{RelayID: "own", Log: slog.New(slog.DiscardHandler)})
	o := ListenerOptions{LongPoll: time.Millisecond}
	conn := serveInMemory(t, func(g *grpc.Server) { server.Register(g, o) }, ServerOptions(o)...).dial()
	web := httptest.NewUnstartedServer(nil)
	web.Config = server.HTTPServer(o)
	web.Start()
	defer web.Close()

	outgoing := func(values []string) context.Context {
		return metadata.NewOutgoingContext(testContext(t), metadata.MD{chain.Header: values})
	}
	stream := func(values []string) error {
		ctx, cancel := context.WithCancel(outgoing(values))
		defer cancel()
		g := openRaw(ctx, t, conn, adsMethods[deltaForm.name])
		if err := g.SendMsg(asking(deltaForm.name, clusterType, "a")); err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- ending(g) }()
		select {
		case through := <-seen:
			cancel()
			if err := <-ended; status.Code(err) != codes.Canceled {
				return err
			}
			seen <- through
			return nil
		case err := <-ended:
			return err
		}
	}
	fetch := func(values []string) error {
		req := &discoveryv3.DiscoveryRequest{ResourceNames: []string{"a"}}
		err := conn.Invoke(outgoing(values), "/envoy.service.cluster.v3.ClusterDiscoveryService/FetchClusters", req, new(discoveryv3.DiscoveryResponse))
		if status.Code(err) == codes.Unavailable {
			return nil // not known yet
		}
		return err
	}
	rest := func(values []string) error {
		req, err := http.NewRequestWithContext(testContext(t), http.MethodPost, web.URL+"/v3/discovery:clusters", strings.NewReader(`{"resource_names": ["a"]}`))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header[http.CanonicalHeaderKey(chain.Header)] = values
		resp, err := web.Client().Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if resp.StatusCode == http.StatusBadRequest {
			return status.Error(codes.FailedPrecondition, string(body))
		}
		return err
	}
	for service, ask := range map[string]func([]string) error{"stream": stream, "fetch": fetch, "REST": rest} {
		for _, tt := range []struct {
			values []string
			want   chain.Chain
		}{
			{nil, chain.Chain{}},
			{[]string{"*"}, chain.Chain{Relay: true}},
			{[]string{"a%2Cb", "c"}, chain.Chain{Relay: true, IDs: []string{"a,b", "c"}}},
		} {
			if err := ask(tt.values); err != nil {
				t.Errorf("%s, %q: %v", service, tt.values, err)
				continue
			}
			if got := <-seen; got.Relay != tt.want.Relay || !slices.Equal(got.IDs, tt.want.IDs) {
				t.Errorf("%s, %q: got %+v", service, tt.values, got)
			}
		}
		err := ask([]string{"a,own", "b"})
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "loop of relays: own -> b -> own") {
			t.Errorf("%s: a loop gives %v", service, err)
		}
	}
}
