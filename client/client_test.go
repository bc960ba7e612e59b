package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/testplane"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

var bothProtocols = []Protocol{Delta, SotW}

// long is for what must happen: a test waits so long only when it fails.
const long = 20 * time.Second

func clusters(names ...string) map[resourcev3.Type][]types.Resource {
	var list []types.Resource
	for _, name := range names {
		name, content, _ := strings.Cut(name, "=")
		list = append(list, &clusterv3.Cluster{Name: name, AltStatName: content})
	}
	return map[resourcev3.Type][]types.Resource{resourcev3.ClusterType: list}
}

func namesOf(resources []*discoveryv3.Resource) string {
	var list []string
	for _, r := range resources {
		list = append(list, r.GetName())
	}
	return strings.Join(list, " ")
}

func TestGetGivesResourcesInTheOrderAsked(t *testing.T) {
	for _, protocol := range bothProtocols {
		t.Run(protocol.String(), func(t *testing.T) {
			plane := testplane.NewSnapshot(t)
			plane.Set(t, "1", clusters("a", "b", "c"))
			address := testplane.Listen(t, plane)
			for _, test := range []struct {
				asked []string
				want  string
			}{
				{[]string{"c", "a"}, "c a"},
				{nil, "a b c"},
			} {
				answer, err := Get(t.Context(), Server{Address: address}, testQuery(protocol, xdstype.ClusterV3, test.asked...), long)
				if err != nil {
					t.Fatal(err)
				}
				if got := namesOf(answer.Resources); got != test.want {
					t.Errorf("requested %q: got %q, want %q", test.asked, got, test.want)
				}
				for _, r := range answer.Resources {
					if r.GetVersion() == "" {
						t.Errorf("%q has no version", r.GetName())
					}
				}
			}
		})
	}
}

func TestGetTellsMissingFromUnanswered(t *testing.T) {
	plane := testplane.NewSnapshot(t)
	resources := clusters("a")
	resources[resourcev3.EndpointType] = []types.Resource{&endpointv3.ClusterLoadAssignment{ClusterName: "a"}}
	plane.Set(t, "1", resources)
	address := testplane.Listen(t, plane)

	// A full state says that what it leaves out does not exist.
	answer, err := Get(t.Context(), Server{Address: address}, testQuery(SotW, xdstype.ClusterV3, "a", "z"), long)
	if err != nil {
		t.Fatal(err)
	}
	if namesOf(answer.Resources) != "a" || !slices.Equal(answer.Missing, []NameError{{"z", nil}}) {
		t.Errorf("got %q, missing %q", namesOf(answer.Resources), answer.Missing)
	}

	// Endpoints that are left out may still come.
	answer, err = Get(t.Context(), Server{Address: address}, testQuery(SotW, resourcev3.EndpointType, "a", "z"), 300*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if namesOf(answer.Resources) != "a" || !slices.Equal(answer.Unanswered, []string{"z"}) || len(answer.Missing) > 0 {
		t.Errorf("got %q, unanswered %q, missing %q", namesOf(answer.Resources), answer.Unanswered, answer.Missing)
	}
}

func TestGetWaitsForTheRestOfADeltaWildcard(t *testing.T) {
	part := func(name string) *discoveryv3.DeltaDiscoveryResponse {
		content, err := anypb.New(&clusterv3.Cluster{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return &discoveryv3.DeltaDiscoveryResponse{
			TypeUrl: xdstype.ClusterV3, Nonce: name,
			Resources: []*discoveryv3.Resource{{Name: name, Resource: content}},
		}
	}
	address := testplane.Listen(t, &puppet{atOnce: true, responses: []*discoveryv3.DeltaDiscoveryResponse{part("a"), part("b"), part("c")}})
	answer, err := Get(t.Context(), Server{Address: address}, testQuery(Delta, xdstype.ClusterV3), long)
	if err != nil {
		t.Fatal(err)
	}
	if got := namesOf(answer.Resources); got != "a b c" {
		t.Errorf("got %q", got)
	}
}

func TestUnknownTypeIsTakenAndUndecodableIsNACKed(t *testing.T) {
	const unknownType = xdstype.Prefix + "example.Unheard"
	garbage := []byte{0xff}
	for _, test := range []struct {
		typeURL string
		nack    bool
	}{
		{unknownType, false},
		{xdstype.ClusterV3, true},
	} {
		server := &puppet{
			requests: make(chan *discoveryv3.DeltaDiscoveryRequest, 2),
			responses: []*discoveryv3.DeltaDiscoveryResponse{{
				TypeUrl: test.typeURL, Nonce: "1",
				Resources: []*discoveryv3.Resource{{Name: "a", Resource: &anypb.Any{TypeUrl: test.typeURL, Value: garbage}}},
			}},
		}
		address := testplane.Listen(t, server)
		ctx, cancel := context.WithCancel(t.Context())
		err := Watch(ctx, Server{Address: address}, testQuery(Delta, test.typeURL, "a"), func(e Event) {
			switch {
			case e.Kind == Connected:
				return
			case (e.Kind == Rejected) != test.nack:
				t.Errorf("%s: %+v", test.typeURL, e)
			}
			<-server.requests
			reply := <-server.requests
			if (reply.GetErrorDetail() != nil) != test.nack {
				t.Errorf("%s: the reply is %v", test.typeURL, reply)
			}
			cancel()
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestUnimplementedSaysWhatToTry(t *testing.T) {
	address := testplane.Listen(t, &puppet{}) // serves delta only
	query := testQuery(SotW, xdstype.ClusterV3)
	_, err := Get(t.Context(), Server{Address: address}, query, long)
	var unimplemented *UnimplementedError
	if !errors.As(err, &unimplemented) || !strings.Contains(err.Error(), "try --protocol delta") {
		t.Errorf("get: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	err = Watch(ctx, Server{Address: address}, query, func(Event) {})
	if !errors.As(err, &unimplemented) {
		t.Errorf("watch: %v", err)
	}
}

func TestGetOfAServerThatIsNotThere(t *testing.T) {
	address := testplane.RefusingAddress(t)
	_, err := Get(t.Context(), Server{Address: address}, testQuery(Delta, xdstype.ClusterV3), long)
	if err == nil || !strings.Contains(err.Error(), "cannot talk to "+address) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
}

// watching runs a watch whose events can be waited for.
type watching struct {
	t      *testing.T
	events chan Event
}

func startWatching(t *testing.T, address string, q Query) watching {
	t.Helper()
	w := watching{t: t, events: make(chan Event, 100)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- watch(ctx, Server{Address: address}, q,
			func(e Event) { w.events <- e },
			func(int) time.Duration { return 10 * time.Millisecond })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the watch ended with %v", err)
		}
	})
	return w
}

// expect waits for events of these kinds and names, in any order within a call,
// and passes over lost connections.
func (w watching) expect(want ...string) {
	w.t.Helper()
	var got []string
	for len(got) < len(want) {
		select {
		case e := <-w.events:
			if word, ok := kindWords[e.Kind]; ok {
				got = append(got, word+" "+e.Name)
			}
		case <-time.After(long):
			w.t.Fatalf("waiting for %q, got %q", want, got)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Fatalf("got %q, want %q", got, want)
	}
}

func TestWatchTellsEveryChangeOnce(t *testing.T) {
	for _, protocol := range bothProtocols {
		t.Run(protocol.String(), func(t *testing.T) {
			plane := testplane.NewSnapshot(t)
			plane.Set(t, "1", clusters("a=1", "b=1"))
			address := testplane.Listen(t, plane)
			w := startWatching(t, address, testQuery(protocol, xdstype.ClusterV3))
			w.expect("added a", "added b")
			plane.Set(t, "2", clusters("a=1", "b=2"))
			w.expect("changed b")
			plane.Set(t, "3", clusters("b=2", "c=1"))
			w.expect("added c", "removed a")
		})
	}
}

func TestWatchGoesOnWhenTheServerReturns(t *testing.T) {
	for _, protocol := range bothProtocols {
		t.Run(protocol.String(), func(t *testing.T) {
			plane := testplane.NewSnapshot(t)
			plane.Set(t, "1", clusters("a=1", "b=1", "c=1"))
			address, server := testplane.ListenOn(t, "127.0.0.1:0", plane)
			w := startWatching(t, address, testQuery(protocol, xdstype.ClusterV3))
			w.expect("added a", "added b", "added c")

			server.Stop()
			if e := <-w.events; e.Kind != Disconnected || e.Err == nil {
				t.Fatalf("after the server's end: %+v", e)
			}
			restarted := testplane.NewSnapshot(t)
			restarted.Set(t, "2", clusters("a=1", "b=2"))
			testplane.ListenOn(t, address, restarted)
			w.expect("changed b", "removed c")
		})
	}
}
