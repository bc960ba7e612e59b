package downstream

import (
	"fmt"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// Clients that support TTLs and request the same names are sent their heartbeats in the same buffer, from the second
// client on, also together with news. Clients without TTL support are sent no heartbeat, and have nothing pending.
func TestClientsWithTheSameNamesShareHeartbeats(t *testing.T) {
	names := benchNames(20)
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			c := newTestCache(silentSource{}, 1<<20)
			defer c.Close()
			server, _ := newTestServer(c, DefaultMaxResponseBytes)
			put := func(version string, names ...string) { c.Apply(endpointsOf(version, time.Minute, names...)) }
			come := func(features ...string) *testClient {
				client := newTestClient(server, form, &corev3.Node{Id: "test", ClientFeatures: features})
				t.Cleanup(client.close)
				subscribe(t, client, endpointType, names...)
				return client
			}
			var clients []*testClient
			for range 4 {
				clients = append(clients, come(session.FeatureTTL))
			}
			old := come()
			put("v1", names...)
			for _, client := range append(clients, old) {
				if r := client.st.next(); r == nil || len(decode(t, form, r).resources) != len(names) {
					t.Fatal("not sent what there is")
				}
			}
			// Each client's response, which has so many heartbeats.
			read := func(want int) (all []mem.BufferSlice) {
				t.Helper()
				for _, client := range clients {
					r := client.st.next()
					if r == nil {
						t.Fatal("no heartbeats")
					}
					msg, beats := r.Encode(), 0
					for _, res := range decode(t, form, r).resources {
						if res.ttl != time.Minute {
							t.Errorf("%s: a TTL of %s, want a minute", res.name, res.ttl)
						}
						if res.beat {
							beats++
						}
					}
					if beats != want {
						t.Fatalf("%d heartbeats, want %d", beats, want)
					}
					all = append(all, msg)
				}
				return all
			}
			for round := range 300 { // more than a subscription counts
				put("v1", names...)
				if all := read(len(names)); len(all[3]) != 2 || &all[2][0].ReadOnlyData()[0] != &all[3][0].ReadOnlyData()[0] {
					t.Fatalf("round %d: %d buffers, and not the same", round, len(all[3]))
				}
				if r := old.st.next(); r != nil {
					t.Fatal("a client that knows no TTLs is sent heartbeats")
				}
			}
			u := endpointsOf("v1", time.Minute, names...)
			u.Changes[7] = endpointsOf("v2", time.Minute, names[7]).Changes[0]
			c.Apply(u)
			if form == deltaForm.name { // in SotW, what is new goes alone
				read(len(names) - 1)
			}
			if r := old.st.next(); r == nil || fmt.Sprint(decode(t, form, r).resources[0].content) != "v2 of "+names[7] {
				t.Error("a client that knows no TTLs is not sent what is new")
			}
		})
	}
}
