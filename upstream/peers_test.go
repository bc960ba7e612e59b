package upstream

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
)

// When a control plane is back, both streams of a scope are open at the same time, however
// long each would have waited for its next attempt. No client gets the error that it cannot be reached.
func TestStreamsComeBackTogether(t *testing.T) {
	withPlane(t, func(b *bench, p *plane) {
		p.set(b.T, "1", map[string]string{"a": "1"})
		b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		a := entryOf(b.cache.Watch(key("cds", "a"), &watcher{}))
		synctest.Wait()
		b.server.Stop()
		pass(10 * time.Minute)
		lis := memconn.Listen(1 << 20)
		b.mu.Lock()
		b.lis = lis
		b.mu.Unlock()
		b.server = grpc.NewServer()
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(b.server, p.server)
		go func(s *grpc.Server) { _ = s.Serve(lis) }(b.server)
		for connected := 0; connected == 0; {
			pass(10 * time.Millisecond)
			synctest.Wait()
			for _, st := range b.stream.Statuses() {
				if st.Connected {
					connected++
				}
			}
			if connected == 1 {
				b.Error("only one of the streams is back")
			}
		}
		b.stream.Resend()
		synctest.Wait()
		if st := a.State(); st.Err != nil {
			b.Errorf("a has the error %v", st.Err)
		}
	})
}
