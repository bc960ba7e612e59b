package upstream

import (
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// A control plane that does not read what the relay holds sends it again on a new stream. What it does not send is gone,
// and the log says so.
func TestWhatAControlPlaneHasForgottenIsInTheLog(t *testing.T) {
	const line = "control plane does not read which resources the relay holds"
	for _, typ := range []string{"eds", "cds"} {
		run(t, Options{Protocol: Delta}, func(b *bench) {
			if typ == "cds" {
				b.cache.WatchSet(key(typ, cache.Wildcard), &setWatcher{})
			} else {
				b.watch(typ, "a", "b", "c")
			}
			st := b.next()
			st.delta(t)
			b.respond(st, deltaResponse(t, typ, "1", "a", "b", "c"))
			if n := b.logs.count(line); n != 0 {
				t.Errorf("%s: the log has %d lines too early", typ, n)
			}
			st.end <- nil
			st = b.next()
			st.delta(t)
			b.respond(st, deltaResponse(t, typ, "1", "a"))
			pass(time.Minute)
			if n := b.logs.count("resources=2"); n != 1 || b.logs.count(line) != 1 {
				t.Errorf("%s: the log has the line %d times, %d times with the number", typ, b.logs.count(line), n)
			}
		})
	}
}
