package upstream

import (
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// A control plane that may answer only requests of which it has every name renames a Cluster. The relay requests the new
// endpoints without the old ones, which clients request until they have processed the removal of the Cluster.
func TestTheEndpointsOfARenamedClusterAreNotRequested(t *testing.T) {
	for answers, want := range map[session.Answers][]string{session.AnswersAuto: {"two"}, session.AnswersAll: {"one", "two"}} {
		run(t, Options{Protocol: SotW, Answers: answers}, func(b *bench) {
			// requested returns the names of the next request of endpoints.
			requested := func(st *scripted) []string {
				for {
					if r := st.request(t).(*discoveryv3.DiscoveryRequest); r.GetTypeUrl() == typeURLs["eds"] {
						return r.GetResourceNames()
					}
				}
			}
			b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
			one := b.watch("eds", "one")["one"]
			st := b.next()
			if got := requested(st); !slices.Equal(got, []string{"one"}) {
				t.Fatalf("first, %q are requested", got)
			}
			b.respond(st, sotwResponse(t, "cds", "1", "one"))
			b.respond(st, sotwResponse(t, "eds", "2", "one"))
			requested(st)
			b.respond(st, sotwResponse(t, "cds", "3", "two"))
			b.watch("eds", "two")
			if got := requested(st); !slices.Equal(got, want) {
				t.Errorf("%q are requested, want %q", got, want)
			}
			b.want(one, "present "+one.State().Resource.Version())
		})
	}
}
