package upstream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// go-control-plane says in delta that a name is gone only to who holds it. What a client
// holds from before the relay was started is what the relay holds, then.

// reading watches names, which a client holds from an earlier stream if resumed.
func (b *bench) reading(resumed bool, names ...string) map[string]*cache.Entry {
	r := b.cache.NewReader()
	entries := map[string]*cache.Entry{}
	for _, name := range names {
		entries[name], _ = r.Watch(key("cds", name), &watcher{})
		if resumed {
			r.Resume(entries[name])
		}
	}
	return entries
}

func withDeltaPlane(t *testing.T, test func(*bench, *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		defer p.cancel()
		b := &bench{T: t, logs: &logBuffer{}}
		b.start(Options{Protocol: Delta}, p.server)
		defer b.stop()
		p.set(t, "1", map[string]string{"a": "1"})
		test(b, p)
	})
}

func (p *plane) streams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deltas
}

func TestGoControlPlaneSaysWhatIsGoneOfWhatIsResumed(t *testing.T) {
	withDeltaPlane(t, func(b *bench, _ *plane) {
		resumed, fresh := b.reading(true, "a", "gone"), b.reading(false, "new")
		b.wantText(resumed["a"], "1")
		pass(session.DefaultResponseTimeout + time.Second) // the first request may have gone out in between
		b.wantText(resumed["gone"], "absent")
		b.wantText(fresh["new"], "failed") // which is not absent
	})
}

func TestWhatIsResumedLaterIsAskedForOnOneNewStream(t *testing.T) {
	withDeltaPlane(t, func(b *bench, p *plane) {
		first := b.reading(false, "a", "silent")
		b.wantText(first["a"], "1")
		pass(2 * time.Second)
		later := b.reading(true, "a", "gone", "silent")
		b.wantText(later["gone"], "requested")
		if n := p.streams(); n != 1 {
			t.Errorf("there have been %d streams, want 1: an answer may come", n)
		}
		pass(session.DefaultResponseTimeout + time.Second)
		b.wantText(later["gone"], "absent")
		b.wantText(later["silent"], "absent")
		b.wantText(later["a"], "1")
		if n := p.streams(); n != 2 {
			t.Errorf("there have been %d streams, want 2", n)
		}
		b.reading(true, "gone", "silent", "a")
		pass(time.Minute)
		if n := p.streams(); n != 2 {
			t.Errorf("there have been %d streams, want 2: all of it is known", n)
		}
	})
}

// A client says name by name what it resumes, while the first request may go out.
func TestWhatJustMissesTheFirstRequestIsListedOnANewStreamAtOnce(t *testing.T) {
	withDeltaPlane(t, func(b *bench, p *plane) {
		first := b.reading(false, "a", "gone")
		b.wantText(first["a"], "1")
		b.wantText(first["gone"], "requested")
		resumed := b.reading(true, "gone")
		b.wantText(resumed["gone"], "absent")
		if n := p.streams(); n != 2 {
			t.Errorf("there have been %d streams, want 2", n)
		}
		b.reading(true, "a")
		pass(time.Minute)
		if n := p.streams(); n != 2 {
			t.Errorf("there have been %d streams, want 2: all of it is known", n)
		}
	})
}

// What misses the first request of a stream that was opened for names that are resumed waits for an answer.
func TestWhatJustMissesANewStreamCostsNoFurtherOne(t *testing.T) {
	withDeltaPlane(t, func(b *bench, p *plane) {
		b.wantText(b.reading(false, "a", "gone")["a"], "1")
		b.reading(true, "gone") // which costs a stream
		synctest.Wait()
		b.reading(false, "b")
		synctest.Wait()
		b.wantText(b.reading(true, "b")["b"], "requested")
		pass(session.DefaultResponseTimeout - time.Second)
		if n := p.streams(); n != 2 {
			t.Errorf("there have been %d streams, want 2", n)
		}
		pass(2 * time.Second)
		if n := p.streams(); n != 3 {
			t.Errorf("there have been %d streams, want 3", n)
		}
	})
}

// What clients make up costs a stream within the time of an answer, at most.
func TestAllThatIsResumedRenewsTheStreamTogether(t *testing.T) {
	withDeltaPlane(t, func(b *bench, p *plane) {
		b.reading(false, "a")
		pass(2 * time.Second) // nothing misses the first request
		for range 300 {
			pass(100 * time.Millisecond)
			b.reading(true, time.Now().String())
		}
		pass(session.DefaultResponseTimeout)
		// The first has waited for 15 s at 15 s; the first that was not listed then, at 30 s.
		if n := p.streams(); n != 3 {
			t.Errorf("there have been %d streams, want 3", n)
		}
	})
}
