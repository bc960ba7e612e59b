package upstream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// In delta, go-control-plane reports a removal only to a client that holds the resource. So the relay
// lists resources that its clients hold from before it was started.

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

func TestGoControlPlaneReportsRemovalsOfResumedResources(t *testing.T) {
	withDeltaPlane(t, func(b *bench, _ *plane) {
		resumed, fresh := b.reading(true, "a", "gone"), b.reading(false, "new")
		b.wantText(resumed["a"], "1")
		pass(session.DefaultResponseTimeout + time.Second) // the first request may have gone out in between
		b.wantText(resumed["gone"], "absent")
		b.wantText(fresh["new"], "failed") // which is not absent
	})
}

func TestNamesResumedLaterAreRequestedOnOneNewStream(t *testing.T) {
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

// A client resumes name by name, while the relay may send its first request.
func TestNamesThatJustMissTheFirstRequestAreListedOnANewStreamAtOnce(t *testing.T) {
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

// On a stream that was opened for resumed names, a name that misses the first request waits for an answer.
func TestNamesThatJustMissANewStreamCostNoFurtherOne(t *testing.T) {
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

// Names that clients make up cost at most one stream in each response timeout.
func TestResumedNamesRenewTheStreamTogether(t *testing.T) {
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

// A name that is tried first is listed in the trial.
func TestAResumedNameThatIsTriedFirstIsListed(t *testing.T) {
	withDeltaPlane(t, func(b *bench, p *plane) {
		b.wantText(b.reading(false, "a")["a"], "1")
		pass(2 * time.Second) // nothing misses the first request
		b.stream.touchyUntil.Store(time.Now().Add(touchyFor).UnixNano())
		resumed := b.reading(true, "gone")
		pass(trialPace)
		b.wantText(resumed["gone"], "absent")
		pass(session.DefaultResponseTimeout + time.Second)
		if n := p.streams(); n != 2 {
			t.Errorf("there have been %d streams, want 2: the first, and a trial", n)
		}
	})
}

// A first answer is complete soon after the control plane has answered a type that was requested later. See
// session/grace.go.
func TestAFirstAnswerIsCompleteOnceALaterRequestWasAnswered(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		set := b.cache.WatchSet(key("eds", cache.Wildcard), &setWatcher{})
		b.watch("cds", "earlier")
		st := b.next()
		first, second := st.delta(t), st.delta(t)
		if first.TypeUrl != typeURLs["cds"] || second.TypeUrl != typeURLs["eds"] {
			t.Fatalf("the requests are %v and %v", first, second)
		}
		want := func(incomplete bool, when string) {
			t.Helper()
			if got := set.Incomplete(); got != incomplete {
				t.Errorf("%s: the set is incomplete: %v, want %v", when, got, incomplete)
			}
		}
		b.respond(st, deltaResponse(t, "eds", "1", "member"))
		b.respond(st, deltaResponse(t, "cds", "2", "earlier"))
		pass(time.Second)
		want(true, "an earlier request was answered")
		b.watch("lds", "later")
		synctest.Wait()
		b.respond(st, deltaResponse(t, "lds", "3", "later"))
		pass(100 * time.Millisecond)
		want(false, "a later request was answered")
	})
}
