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
			pass(time.Second)
			if st := b.stream.Status(); st.Unsaid != 2 || time.Since(st.UnsaidSince) > 2*time.Second {
				t.Errorf("%s: the status has %d resources that are not sent again since %s, want 2", typ, st.Unsaid, st.UnsaidSince)
			}
			if n := b.logs.count("what it has not sent yet is kept"); n != 1 {
				t.Errorf("%s: the log has %d lines about what is kept", typ, n)
			}
			pass(time.Minute)
			if n := b.stream.Status().Unsaid; n != 0 {
				t.Errorf("%s: the status has %d resources that are not sent again, want none", typ, n)
			}
			if n := b.logs.count(line); n != 1 || b.logs.count("resources=2") != 2 {
				t.Errorf("%s: the log has the line %d times, and the number %d times, want it in both lines", typ, n, b.logs.count("resources=2"))
			}
		})
	}
}
