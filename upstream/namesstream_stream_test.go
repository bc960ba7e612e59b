package upstream

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// Both streams of a scope, as they come and go.

// inUse returns the statuses of the streams that are in use.
func inUse(s interface{ Statuses() []Status }) string {
	synctest.Wait()
	text := ""
	for _, st := range s.Statuses() {
		if st.inUse() {
			text += fmt.Sprintf("[names=%t connected=%t %d]", st.NamesStream, st.Connected, st.Subscriptions)
		}
	}
	return text
}

func wantInUse(t *testing.T, s interface{ Statuses() []Status }, want string) {
	t.Helper()
	if got := inUse(s); got != want {
		t.Errorf("in use are %s, want %s", got, want)
	}
}

const (
	firstInUse = "[names=false connected=true %d]"
	namesInUse = "[names=true connected=true %d]"
)

func TestGoControlPlaneNamesAndAWildcard(t *testing.T) {
	withPlane(t, func(b *bench, p *plane) {
		wantNothing := func(e *cache.Entry) {
			b.Helper()
			if b.stream.Status().Protocol == SotW {
				b.wantText(e, "absent")
			} else {
				b.wantText(e, "requested") // in delta go-control-plane does not say so
			}
		}
		p.set(b.T, "1", map[string]string{"a": "1", "b": "1"})
		all := &setWatcher{}
		set := b.cache.WatchSet(key("cds", cache.Wildcard), all)
		wantInUse(b.T, b.stream, fmt.Sprintf(firstInUse, 1))
		names := []*watcher{{}, {}}
		// x is the first: go-control-plane answers each stream's first request, but not a
		// later one whose only new name it does not have.
		x := entryOf(b.cache.Watch(key("cds", "x"), names[0]))
		a := entryOf(b.cache.Watch(key("cds", "a"), names[1]))
		wantInUse(b.T, b.stream, fmt.Sprintf(firstInUse+namesInUse, 1, 2))
		b.wantText(a, "1")
		wantNothing(x)

		p.set(b.T, "2", map[string]string{"a": "2", "x": "2"})
		b.wantText(a, "2")
		b.wantText(x, "2")

		// The control plane restarts, and each stream resumes with its own resources.
		b.server.Stop()
		synctest.Wait()
		p.set(b.T, "3", map[string]string{"a": "2", "x": "3", "d": "3"})
		b.restart(p)
		if got := members(set); got != "present [a=2 d=3]" {
			b.Errorf("after the restart the set is %s", got)
		}
		b.wantText(a, "2")
		b.wantText(x, "3")

		// The wildcard is given up, and its stream ends.
		b.cache.Unwatch(all)
		pass(2 * time.Minute)
		wantInUse(b.T, b.stream, fmt.Sprintf(namesInUse, 2))
		p.set(b.T, "4", map[string]string{"a": "4", "x": "4"})
		b.wantText(a, "4")
		c := b.watch("cds", "c")["c"]
		b.wantText(c, "requested") // on a stream that has begun, silence says nothing yet
		wantInUse(b.T, b.stream, fmt.Sprintf(namesInUse, 3))

		// It starts again, on the first stream.
		set = b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		if got := members(set); got != "present [a=4]" {
			b.Errorf("the second set is %s", got)
		}
		wantInUse(b.T, b.stream, fmt.Sprintf(firstInUse+namesInUse, 1, 3))
		for _, w := range names {
			b.cache.Unwatch(w)
		}
		pass(2 * time.Minute)
		wantInUse(b.T, b.stream, fmt.Sprintf(firstInUse+namesInUse, 1, 1))
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.nacks > 0 {
			b.Errorf("%d NACKs", p.nacks)
		}
	})
}

// The second stream ends when nothing is wanted of it. If a name is wanted while it is ending, it opens
// again.
func TestNamesStreamEndsAndComesBack(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		b.next().delta(t)
		w := &watcher{}
		b.cache.Watch(key("cds", "a"), w)
		second := b.next()
		second.delta(t)
		b.cache.Unwatch(w)
		pass(2 * time.Second)
		if got := second.delta(t).GetResourceNamesUnsubscribe(); len(got) != 1 {
			t.Fatalf("unsubscribed from %q, want a", got)
		}
		before := time.Now()
		b.watch("cds", "b")
		again := b.next()
		if got := again.delta(t).GetResourceNamesSubscribe(); len(got) != 1 || got[0] != "b" {
			t.Errorf("the next stream is for %q, want b", got)
		}
		if waited := time.Since(before); waited > 0 {
			t.Errorf("it was opened after %s", waited)
		}
		if again.form != Delta {
			t.Errorf("it speaks %s", again.form)
		}
	})
}

// The second stream speaks the form that the first has found.
func TestNamesStreamSpeaksWhatTheFirstDoes(t *testing.T) {
	run(t, Options{}, func(b *bench) {
		b.script.noDelta = true
		b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		b.next().request(t)
		b.watch("cds", "a")
		second := b.next()
		if r := second.request(t).(*discoveryv3.DiscoveryRequest); len(r.GetResourceNames()) != 1 {
			t.Errorf("it asks for %q, want a", r.GetResourceNames())
		}
		if n := b.logs.count("does not implement"); n != 1 {
			t.Errorf("found out %d times that there is no delta", n)
		}
	})
}

func TestNamesAndAWildcardWithAStreamForEachType(t *testing.T) {
	runSeparate(t, Options{Protocol: SotW}, func(s *separate) {
		set := s.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		first := s.next("StreamClusters")[0]
		first.request(t)
		w := &watcher{}
		out := entryOf(s.cache.Watch(key("cds", "out"), w))
		second := s.next("StreamClusters")[0]
		if r := second.request(t).(*discoveryv3.DiscoveryRequest); len(r.GetResourceNames()) != 1 {
			t.Errorf("the second asks for %q, want out", r.GetResourceNames())
		}
		wantInUse(t, s.streams, fmt.Sprintf(firstInUse+namesInUse, 1, 1))
		s.respond(&first.scripted, sotwResponse(t, "cds", "1", "a"))
		s.respond(&second.scripted, sotwResponse(t, "cds", "2", "out"))
		if got := members(set); got != "present [a=1]" {
			t.Errorf("the set is %s", got)
		}
		s.wantText(out, "2")
		s.cache.Unwatch(w)
		pass(2 * time.Minute)
		wantInUse(t, s.streams, fmt.Sprintf(firstInUse, 1))
		s.cache.Watch(key("cds", "again"), &watcher{})
		s.next("StreamClusters")
	})
}

func TestNamesAndAWildcardThatArePolled(t *testing.T) {
	runREST(t, Options{}, RESTOptions{PollInterval: 10 * time.Second}, func(b *restBench) {
		set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		b.next().reply(200, answerOf(t, "cds", "1", "1", "a"))
		a := entryOf(b.cache.Watch(key("cds", "a"), &watcher{}))
		r := b.next()
		b.wantAsked(r, "a@")
		b.wantText(a, "1")
		r.reply(200, answerOf(t, "cds", "1", "2", "a"))
		b.wantText(a, "2")
		// Each stream polls, with its own version.
		for range 2 {
			r := b.next()
			if len(r.GetResourceNames()) > 0 {
				b.wantAsked(r, "a@1")
				r.reply(200, answerOf(t, "cds", "2", "3"))
			} else {
				b.wantAsked(r, "@1")
				r.reply(304, "")
			}
		}
		b.wantText(a, "absent")
		if got := members(set); got != "present [a=1]" {
			t.Errorf("the set is %s", got)
		}
	})
}

// Once Done is closed, neither stream sends an update.
func TestCloseEndsBothStreams(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		b.next()
		b.watch("cds", "a")
		b.next()
		synctest.Wait()
		second := b.stream.namesStream
		b.stream.Close()
		<-b.stream.Done()
		select {
		case <-second.Done():
		default:
			t.Error("the second has not ended")
		}
	})
}

// Drain waits for both streams, even if the first has no subscriptions.
func TestDrainWaitsForBothStreams(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		all, name := &setWatcher{}, &watcher{}
		b.cache.WatchSet(key("cds", cache.Wildcard), all)
		b.next()
		b.cache.Watch(key("cds", "a"), name)
		second := b.next()
		second.delta(t)
		b.cache.Unwatch(all)
		pass(2 * time.Minute)
		b.cache.Unwatch(name)
		unsubscribed := make(chan []string, 1)
		go func() {
			if m, err := second.recv(); err == nil {
				unsubscribed <- m.(*discoveryv3.DeltaDiscoveryRequest).GetResourceNamesUnsubscribe()
			}
			close(unsubscribed)
			second.end <- nil
		}()
		<-time.After(2 * time.Second)
		b.stream.Drain()
		if st := b.stream.namesStream.Status(); st.Connected {
			t.Error("the second has yet to leave")
		}
		if names := <-unsubscribed; len(names) != 1 {
			t.Errorf("unsubscribed from %q, want a", names)
		}
		wantInUse(t, b.stream, "")
	})
}

const (
	member1     = "xdstp://auth/t/dir/1"
	member2     = "xdstp://auth/t/dir/2"
	membersGlob = "xdstp://auth/t/dir/*"
)

// In delta a glob that comes after names of its type is requested on their stream, and one
// response is for both. A wildcard opens that stream again, and the names move.
func TestNamesAndGlobsShareAStreamInDelta(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		name := b.watch("cds", member1)[member1]
		first := b.next()
		first.delta(t)
		b.respond(first, deltaResponse(t, "cds", "1", member1))
		first.delta(t) // the ACK
		glob := b.cache.WatchSet(key("cds", membersGlob), &setWatcher{})
		if got := first.delta(t).GetResourceNamesSubscribe(); len(got) != 1 || got[0] != membersGlob {
			t.Fatalf("the stream of the name is asked for %q, want the glob", got)
		}
		b.respond(first, deltaResponse(t, "cds", "2", member1, member2))
		first.delta(t)
		b.wantText(name, "2")
		if got := members(glob); got != "present [1=2 2=2]" {
			t.Errorf("the glob has %s", got)
		}
		wantInUse(t, b.stream, fmt.Sprintf(firstInUse, 2))

		b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		for range 2 {
			st := b.next()
			m := st.delta(t)
			switch got := m.GetResourceNamesSubscribe(); {
			case len(got) == 2 && got[0] == cache.Wildcard && len(m.GetInitialResourceVersions()) == 2:
			case len(got) == 1 && got[0] == member1 && len(m.GetInitialResourceVersions()) == 1:
			default:
				t.Errorf("a stream is asked for %q with %v", got, m.GetInitialResourceVersions())
			}
		}
		wantInUse(t, b.stream, fmt.Sprintf(firstInUse+namesInUse, 2, 1))
		b.wantText(name, "2")
	})
}

// If a control plane turns out to speak SotW only, globs are fed from the wildcard. So the names
// move before any SotW request.
func TestNamesMoveFromGlobsWhereThereIsNoDelta(t *testing.T) {
	run(t, Options{}, func(b *bench) {
		b.script.noDelta = true
		b.mu.Lock()
		name := b.watchLocked("eds", member1)[member1]
		glob := b.cache.WatchSet(key("eds", membersGlob), &setWatcher{})
		b.mu.Unlock()
		var first, second *scripted
		for range 2 {
			st := b.next()
			if r := st.request(t).(*discoveryv3.DiscoveryRequest); len(r.GetResourceNames()) == 0 {
				first = st
			} else {
				second = st
			}
		}
		if first == nil || second == nil {
			t.Fatal("want a stream for the wildcard, and one for the name")
		}
		b.respond(first, sotwResponse(t, "eds", "1", member1, member2))
		b.respond(second, sotwResponse(t, "eds", "2", member1))
		if got := members(glob); got != "present [1=1 2=1]" {
			t.Errorf("the glob has %s", got)
		}
		b.wantText(name, "2")
		wantInUse(t, b.stream, fmt.Sprintf(firstInUse+namesInUse, 1, 1))
	})
}
