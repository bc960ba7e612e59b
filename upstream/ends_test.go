package upstream

import (
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
)

// endsSink records when the TTLs of the newest update end.
type endsSink struct {
	mu   sync.Mutex
	ends map[string]time.Time
	any  bool
}

func (s *endsSink) Deliver(e delivery.Event) {
	if e.Kind != delivery.Delivered {
		return
	}
	s.mu.Lock()
	s.ends, s.any = e.ExpiresAt, true
	s.mu.Unlock()
}

// A resource that is resent has the end of its TTL, which does not start again. The same holds for
// members and aliases.
func TestTTLsComeWithTheirResources(t *testing.T) {
	for _, with := range []bool{true, false} {
		sink := &endsSink{}
		run(t, Options{Protocol: Delta}, func(b *bench) {
			stream := newTestStream(testScope, b.conn, nil, Options{Protocol: Delta, WithExpiresAt: with}, sink, slog.New(slog.DiscardHandler))
			defer func() {
				stream.Close()
				<-stream.Done()
			}()
			begin := time.Now()
			want := map[string]time.Time{"a": begin.Add(time.Minute), "alias": begin.Add(2 * time.Minute)}
			check := func(when string) {
				t.Helper()
				synctest.Wait()
				sink.mu.Lock()
				defer sink.mu.Unlock()
				if !sink.any || with && !maps.EqualFunc(sink.ends, want, time.Time.Equal) || !with && sink.ends != nil {
					t.Errorf("%s, ExpiresAt %t: %v, want %v", when, with, sink.ends, want)
				}
				sink.any = false
			}
			for _, name := range []string{"a", "b", "alias"} {
				stream.Start(cache.Key{Scope: testScope, TypeURL: typeURLs["cds"], Name: name})
			}
			st := b.next()
			synctest.Wait() // until it has been asked
			m := deltaResponse(t, "cds", "1", "a", "b", "c")
			m.Resources[0].Ttl = durationpb.New(time.Minute)
			m.Resources[2].Ttl = durationpb.New(2 * time.Minute)
			m.Resources[2].Aliases = []string{"alias"}
			b.respond(st, m)
			check("at once")
			pass(10 * time.Second)
			stream.Resend()
			check("said again")
			b.respond(st, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs["cds"], Nonce: "2", Resources: []*discoveryv3.Resource{{Name: "a", Version: "v1", Ttl: durationpb.New(time.Minute)}}})
			want = map[string]time.Time{"a": time.Now().Add(time.Minute)}
			check("renewed")
		})
	}
}
