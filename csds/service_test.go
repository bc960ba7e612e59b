package csds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// holder is a relay that has requested n resources.
type holder struct {
	n    int
	each func(i int) downstream.Held
}

func (holder) Clients() iter.Seq2[*downstream.Inspected, func(*downstream.Held) bool] {
	return func(func(*downstream.Inspected, func(*downstream.Held) bool) bool) {}
}

func (holder) Place(ctx context.Context) (*downstream.Place, error) {
	return OperatorsPlaces().TakeOperators(ctx)
}

func (h holder) Upstream() iter.Seq[downstream.Held] {
	return func(yield func(downstream.Held) bool) {
		for i := range h.n {
			if !yield(h.each(i)) {
				return
			}
		}
	}
}

func resource(t testing.TB, typeURL, name string, m proto.Message) *cache.Resource {
	t.Helper()
	value, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return cache.NewResource(cache.Spec{Name: name, Version: "1", TypeURL: typeURL, Value: value})
}

func serve(t *testing.T, v Viewer) statusv3.ClientStatusDiscoveryServiceClient {
	t.Helper()
	lis, g := memconn.Listen(1<<16), grpc.NewServer()
	New(func() *corev3.Node { return &corev3.Node{Id: "relay"} }, func(context.Context) (Viewer, error) { return v, nil }).Register(g)
	go func() { _ = g.Serve(lis) }()
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("passthrough:///relay", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return statusv3.NewClientStatusDiscoveryServiceClient(conn)
}

func acked(r *cache.Resource, name string) downstream.Held {
	return downstream.Held{Held: session.Held{TypeURL: r.TypeURL(), Subscription: name, Name: name, State: session.Acked, Resource: r, Version: "1"}}
}

// A large answer is split into several responses that every gRPC client accepts, all with the same node and scope.
// Each resource is in exactly one. The unary method leaves out the contents, and if that is not enough, returns an
// error that the answer is too large.
func TestLargeAnswersAreSplit(t *testing.T) {
	const size, n = 10_000, 1_000
	large := resource(t, xdstype.ClusterV3, "c", &clusterv3.Cluster{Name: "c", AltStatName: strings.Repeat("x", size)})
	client := serve(t, holder{n, func(i int) downstream.Held { return acked(large, fmt.Sprint("c", i)) }})
	stream, err := client.StreamClientStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&statusv3.ClientStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	_ = stream.CloseSend()
	seen, responses := map[string]bool{}, 0
	for {
		resp, err := stream.Recv() // its limit is 4 MiB
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		responses++
		if is := proto.Size(resp); is > chunkBytes {
			t.Errorf("a response has %d bytes", is)
		}
		for _, c := range resp.GetConfig() {
			if c.GetNode().GetId() != "relay" {
				t.Errorf("a part is of %v", c.GetNode())
			}
			for _, g := range c.GetGenericXdsConfigs() {
				if seen[g.GetName()] {
					t.Errorf("%s comes twice", g.GetName())
				}
				seen[g.GetName()] = true
				if g.GetXdsConfig() == nil {
					t.Errorf("%s has no content", g.GetName())
				}
			}
		}
	}
	if len(seen) != n || responses < size*n/chunkBytes {
		t.Errorf("%d of %d resources came, in %d responses", len(seen), n, responses)
	}

	whole, err := client.FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := whole.GetConfig(); len(got) != 1 || len(got[0].GetGenericXdsConfigs()) != n || got[0].GetGenericXdsConfigs()[0].GetXdsConfig() != nil {
		t.Errorf("the whole has %d configs", len(got))
	}
	client = serve(t, holder{50 * n, func(i int) downstream.Held { return acked(large, fmt.Sprint(strings.Repeat("long", 30), i)) }})
	if _, err := client.FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{}); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "StreamClientStatus") {
		t.Errorf("got %v, want that it is too large, and what to do", err)
	}
}

// No one sees a secret, or the content of a type in which the relay cannot find the secrets.
func TestSecretsAreMasked(t *testing.T) {
	const hush = "hush-hush"
	secret := resource(t, xdstype.SecretV3, "s", &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: hush}},
	}}})
	unknown := cache.NewResource(cache.Spec{Name: "u", Version: "1", TypeURL: "type.googleapis.com/example.Unheard", Value: []byte("\x0a\x09" + hush)})
	broken := cache.NewResource(cache.Spec{Name: "b", Version: "1", TypeURL: xdstype.SecretV3, Value: []byte("\xff" + hush)})
	all := []*cache.Resource{secret, unknown, broken}
	client := serve(t, holder{2 * len(all), func(i int) downstream.Held {
		h := acked(all[i/2], all[i/2].Name())
		if i%2 == 1 {
			h.State, h.Rejected, h.Resource = session.Nacked, h.Resource, nil
		}
		return h
	}})
	whole, err := client.FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), hush) {
		t.Errorf("a secret is shown: %v", whole)
	}
	first := whole.GetConfig()[0].GetGenericXdsConfigs()[0]
	is := new(tlsv3.Secret)
	if err := first.GetXdsConfig().UnmarshalTo(is); err != nil || is.GetTlsCertificate().GetPrivateKey().GetInlineString() != "[redacted]" {
		t.Errorf("the secret is shown as %v (%v)", first, err)
	}
}

// A state shows what a client has, as client_status and as config_status.
func TestStates(t *testing.T) {
	r := resource(t, xdstype.ClusterV3, "c", &clusterv3.Cluster{Name: "c"})
	has := func(change func(*downstream.Held)) downstream.Held {
		h := acked(r, "c")
		change(&h)
		return h
	}
	for want, h := range map[string]downstream.Held{
		"ACKED SYNCED":                   has(func(*downstream.Held) {}),
		"ACKED NOT_SENT " + saysKeptBack: has(func(h *downstream.Held) { h.KeptBack = true }),
		"ACKED NOT_SENT " + saysPending:  has(func(h *downstream.Held) { h.Pending = true }),
		"ACKED SYNCED " + saysStale:      has(func(h *downstream.Held) { h.Stale = true }),
		"REQUESTED STALE":                has(func(h *downstream.Held) { h.State = session.Unanswered }),
		"REQUESTED NOT_SENT":             has(func(h *downstream.Held) { h.State, h.Resource = session.Requested, nil }),
		"NACKED ERROR it is bad": has(func(h *downstream.Held) {
			h.State, h.NACK = session.Nacked, &downstream.LastNACK{Reason: "it is bad"}
		}),
		"DOES_NOT_EXIST UNKNOWN": has(func(h *downstream.Held) { h.State = session.DoesNotExist }),
		"RECEIVED_ERROR UNKNOWN Unavailable: away": has(func(h *downstream.Held) {
			h.State, h.Err = session.Failed, &cache.Error{Code: codes.Unavailable, Message: "away"}
		}),
		"TIMEOUT UNKNOWN": has(func(h *downstream.Held) { h.State = session.TimedOut }),
	} {
		g := (&answer{excludes: true}).resource(&h)
		got := strings.TrimSpace(g.GetClientStatus().String() + " " + g.GetConfigStatus().String() + " " + g.GetErrorState().GetDetails())
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
