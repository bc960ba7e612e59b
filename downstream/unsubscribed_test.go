package downstream

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/cache"
)

// A client can make up any number of names, and unsubscribe from them. While a wildcard has no answer, it is not known
// what to send about them.
func TestNamesThatAreUnsubscribedFromAreBounded(t *testing.T) {
	const each, rounds = 1000, 5
	for _, tt := range []struct {
		name    string
		denied  string
		limit   int
		pending int
		ends    bool
	}{
		{"a wildcard that the client may not have covers no names", cache.Wildcard, 2 * each, 0, false},
		{"one without an answer does: as many names wait as the client may subscribe to", "", 2 * each, 2 * each, true},
		{"without a limit, they wait", "", 0, rounds * each, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ch := newTestCache(&recordingSource{}, 1000)
			defer ch.Close()
			server, _ := newTestServer(ch, DefaultMaxResponseBytes)
			c := newTestClient(server, deltaForm.name, &corev3.Node{Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{deniedField: structpb.NewStringValue(tt.denied)}}})
			defer c.close()
			c.st.limits = &Limits{Subscriptions: tt.limit}
			if err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{cache.Wildcard, "open"}}); err != nil {
				t.Fatal(err)
			}
			for round := range rounds {
				names := make([]string, each)
				for i := range names {
					names[i] = fmt.Sprintf("made-up-%d-%d", round, i)
				}
				err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: names})
				if err == nil {
					c.readAll(t)
					err = c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesUnsubscribe: names})
				}
				if over := tt.ends && round >= 2; (err != nil) != over {
					t.Fatalf("in round %d: %v", round, err)
				}
				if err != nil {
					const want = "3000 names unsubscribed from on this stream and still to be answered, but limits.subscriptions is 2000"
					if err.Error() != "rpc error: code = ResourceExhausted desc = "+want && err.Error() != want {
						t.Errorf("got %v, want %s", err, want)
					}
					return
				}
				c.readAll(t)
			}
			if s := c.st.session(clusterType); s.Subscribed() != 1 || s.Pending() != tt.pending || s.Unsubscribed() != tt.pending {
				t.Errorf("%d subscribed, %d pending, %d unsubscribed; want 1 and %d", s.Subscribed(), s.Pending(), s.Unsubscribed(), tt.pending)
			}
		})
	}
}
