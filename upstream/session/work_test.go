package session

import (
	"fmt"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/costs"
)

// Clients and control planes may have any number of these. Twice as many of them must cost
// twice the work, and not four times.

// worker plays a control plane and a client, without a stream.
type worker struct {
	t       *testing.T
	form    Form
	of      *Topics // nil until something is subscribed to
	noGlobs bool
	Session
	now time.Time
}

func newWorker(t *testing.T, sotw bool) *worker {
	w := &worker{t: t, form: Delta, now: t0}
	if sotw {
		w.form = SotW
	}
	return w
}

// round does what a Stream does after each event.
func (w *worker) round() {
	w.now = w.now.Add(time.Millisecond)
	w.of.Expire(w.now)
	w.Conclude(w.now, DefaultResponseTimeout, Selective)
	w.Requests(w.now, maxRequestBytes)
	w.of.Oldest()
	w.of.NextDue()
}

func (w *worker) start(names ...string) (u cache.Update) {
	began := w.of == nil
	for _, name := range names {
		w.of = withKind(w.of, cache.Scope{Authority: "a"}, typeURLs["eds"], name)
	}
	if s := w.of.Sets; s != nil {
		s.noGlobs = w.noGlobs
	}
	if began {
		w.Session = w.form.Begin(w.of)
	}
	u = w.of.NewUpdate()
	for _, name := range names {
		w.of.Start(name, nil, &u)
	}
	w.round()
	return u
}

func (w *worker) stop(names ...string) {
	for _, name := range names {
		w.of.Stop(name)
	}
	w.round()
}

// say sends a response. It returns how many updates of sets follow.
func (w *worker) say(r *Response) (sets int) {
	w.t.Helper()
	r.TypeURL = w.of.TypeURL()
	u, nack := w.Response(w.now, r)
	if nack != "" {
		w.t.Fatal(nack)
	}
	w.round()
	return len(u.Sets)
}

const workType = "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/"

func workNames(format string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(workType+format, i)
	}
	return names
}

func workResources(names []string, version string) (all []Resource) {
	for _, name := range names {
		all = append(all, Resource{Name: name, Version: version, Present: true, typeURL: typeURLs["eds"], value: appendText(nil, 1, name)})
	}
	return all
}

// Names come first, then as many globs one by one, each answered by a response of
// its own, and then names in their directories.
func TestWorkOfNamesAndGlobs(t *testing.T) {
	costs.Linear(t, 200, func(t *testing.T, n int) {
		w := newWorker(t, false)
		names := workNames("dir/%d/x", n)
		w.start(names...)
		w.say(&Response{Nonce: "n", Resources: workResources(names, "1")})
		sets := 0
		for i, glob := range workNames("dir/%d/*", n) {
			w.start(glob)
			sets += w.say(&Response{Nonce: "g", Resources: workResources([]string{fmt.Sprintf(workType+"dir/%d/y", i)}, "1")})
		}
		if sets != n {
			t.Fatalf("%d globs come to %d updates of sets, want %d", n, sets, n)
		}
		for _, name := range workNames("dir/%d/y", n) {
			if u := w.start(name); len(u.Changes) != 1 || u.Changes[0].Resource == nil {
				t.Fatalf("the cache gets %v for a member that is requested by name", u.Changes)
			}
			w.stop(name)
		}
	})
}

// A wildcard comes first, and then as many globs as it has members, one by one,
// each answered by a response of its own.
func TestWorkOfMembersAndGlobs(t *testing.T) {
	for name, noGlobs := range map[string]bool{"asked for": false, "from the wildcard": true} {
		t.Run(name, func(t *testing.T) {
			costs.Linear(t, 200, func(t *testing.T, n int) {
				w := newWorker(t, false)
				w.noGlobs = noGlobs
				w.start(cache.Wildcard)
				w.say(&Response{Nonce: "n", Resources: workResources(workNames("dir/%d/x", n), "1")})
				sets := 0
				for i, glob := range workNames("dir/%d/*", n) {
					w.start(glob)
					sets += w.say(&Response{Nonce: "g", Resources: workResources([]string{fmt.Sprintf(workType+"dir/%d/y", i)}, "1")})
				}
				if want := 2 * n; sets != want { // the wildcard has one as well
					t.Fatalf("%d globs come to %d updates of sets, want %d", n, sets, want)
				}
			})
		})
	}
}

// In SotW, globs are parts of one wildcard.
func TestWorkOfMembersAndGlobsOfSotW(t *testing.T) {
	costs.Linear(t, 200, func(t *testing.T, n int) {
		w := newWorker(t, true)
		globs := workNames("dir/%d/*", n)
		w.start(globs[0])
		w.say(&Response{Nonce: "n", Version: "1", Resources: workResources(workNames("dir/%d/x", n), "1")})
		for _, glob := range globs[1:] {
			if u := w.start(glob); len(u.Sets) != 1 || len(u.Sets[0].Changes) != 1 {
				t.Fatalf("the cache gets %v", u.Sets)
			}
		}
		w.round()
	})
}

// Any number of globs wait for the rest of their first answers.
func TestWorkOfGlobsThatSettle(t *testing.T) {
	costs.Linear(t, 200, func(t *testing.T, n int) {
		w := newWorker(t, false)
		globs := workNames("dir/%d/*", n)
		names := workNames("dir/%d/x", n)
		w.start(globs...)
		w.start(names...)
		for i := range n {
			w.say(&Response{Nonce: "n", Resources: workResources(names[i:i+1], "1")})
		}
		w.now = w.now.Add(settleTime)
		if sets := len(w.of.Expire(w.now).Sets); sets != n {
			t.Fatalf("%d globs have settled, want %d", sets, n)
		}
		for i := range n {
			w.stop(globs[i], names[i])
		}
	})
}

// Names that are all aliases of one resource.
func TestWorkOfAliases(t *testing.T) {
	costs.Linear(t, 400, func(t *testing.T, n int) {
		w := newWorker(t, false)
		names := workNames("alias/%d", n)
		w.start(names...)
		r := workResources([]string{workType + "own"}, "1")
		r[0].aliases = names
		w.say(&Response{Nonce: "n", Resources: r})
		for _, name := range names {
			w.stop(name)
		}
	})
}

// Resources that all list one alias, again and again.
func TestWorkOfResourcesWithOneAlias(t *testing.T) {
	costs.Linear(t, 800, func(t *testing.T, n int) {
		w := newWorker(t, false)
		alias := workNames("alias/%d", 1)
		w.start(alias...)
		for range 3 {
			r := workResources(workNames("own/%d", n), "1")
			for i := range r {
				r[i].aliases = alias
			}
			w.say(&Response{Nonce: "n", Resources: r})
		}
	})
}

// Names that are given up and requested again, all at once.
func TestWorkOfNamesThatAreRefreshed(t *testing.T) {
	for name, sotw := range map[string]bool{"delta": false, "sotw": true} {
		t.Run(name, func(t *testing.T) {
			costs.Linear(t, 400, func(t *testing.T, n int) {
				w := newWorker(t, sotw)
				names := workNames("n/%d", n)
				w.start(names...)
				w.say(&Response{Nonce: "n", Version: "1", Resources: workResources(names, "1")})
				u := w.of.NewUpdate()
				for _, name := range names {
					w.of.Again(name, nil, &u)
				}
				w.round()
			})
		})
	}
}

// After a lost stream, the next one resumes with everything that is held, in any number of requests.
func TestWorkOfResuming(t *testing.T) {
	for what, formats := range map[string][]string{"names": {"dir/%d/x"}, "globs": {"dir/%d/*"}, "both": {"dir/%d/*", "dir/%d/x"}} {
		t.Run(what, func(t *testing.T) {
			costs.Linear(t, 400, func(t *testing.T, n int) {
				w := newWorker(t, false)
				for _, format := range formats {
					w.start(workNames(format, n)...)
				}
				w.say(&Response{Nonce: "n", Resources: workResources(workNames("dir/%d/x", n), "1")})
				w.of.Lost()
				w.Session = w.form.Begin(w.of)
				w.round()
			})
		})
	}
}
