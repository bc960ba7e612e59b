package upstream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
)

// quiets returns what the control plane does not answer: for each type, how many, how many are left out, and the newest.
func (f *aFeed) quiets() string {
	var all []string
	for _, st := range f.statuses() {
		for _, q := range st.Quiet {
			all = append(all, fmt.Sprintf("%s %d %d %v", q.TypeURL[strings.LastIndex(q.TypeURL, ".")+1:], q.Topics, q.LeftOut, q.Newest))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// What a control plane does not answer is in the status and in the log, from the response timeout on, until it answers or
// nobody requests it any more.
func TestWhatIsNotAnsweredIsInTheStatusWhileItIsNot(t *testing.T) {
	for _, protocol := range []Protocol{Delta, SotW} {
		for _, aggregated := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/aggregated=%t", protocol, aggregated), func(t *testing.T) {
				onePlane(t, Options{Protocol: protocol}, aggregated, func(f *aFeed, p *touchyPlane) {
					const begins, ends = "control plane does not answer what is requested", "control plane has answered what it did not"
					want := func(when, quiet string, begun, ended int) {
						t.Helper()
						if got := f.quiets(); got != quiet {
							t.Errorf("%s, the status has %q, want %q", when, got, quiet)
						}
						if b, e := f.logs.count(begins), f.logs.count(ends); b != begun || e != ended {
							t.Errorf("%s, the log has the beginning %d times and the end %d times, want %d and %d", when, b, e, begun, ended)
						}
					}
					p.ignore("bad", "worse")
					f.watch("eds", "a", "bad")
					pass(14 * time.Second)
					want("before the timeout", "", 0, 0)
					pass(2 * time.Second)
					want("after it", "ClusterLoadAssignment 1 0 [bad]", 1, 0)
					w := &watcher{}
					f.cache.Watch(key("eds", "worse"), w)
					pass(16 * time.Second)
					want("with another one", "ClusterLoadAssignment 2 0 [worse bad]", 2, 0)
					f.cache.Unwatch(w)
					pass(2 * time.Minute) // it lingers
					want("without it", "ClusterLoadAssignment 1 0 [bad]", 2, 0)
					p.ignore()
					p.endAll(status.Error(codes.Unavailable, "restarts"))
					pass(10 * time.Second)
					want("at the end", "", 2, 1)
					if f.logs.count("answered=[bad]") != 1 {
						t.Errorf("the log does not name what was answered")
					}
				})
			})
		}
	}
}

// Clients can make up names and types. What is shown of those that are not answered is bounded.
func TestWhatIsShownOfMadeUpNamesIsBounded(t *testing.T) {
	onePlane(t, Options{Protocol: Delta}, true, func(f *aFeed, p *touchyPlane) {
		long := strings.Repeat("x", 10_000)
		var names []string
		for i := range 100 {
			names = append(names, fmt.Sprint(i, long))
		}
		p.ignore(names...)
		f.watch("eds", names...)
		for i := range 2 * maxQuietTypes {
			f.cache.Watch(cache.Key{Scope: testScope, TypeURL: fmt.Sprint("type.googleapis.com/made.up.Type", i), Name: names[0]}, &watcher{})
		}
		pass(20 * time.Second)
		st := f.statuses()[0]
		if len(st.Quiet) != maxQuietTypes {
			t.Errorf("%d types are shown, want %d", len(st.Quiet), maxQuietTypes)
		}
		for _, q := range st.Quiet {
			if bytes := len(strings.Join(q.Newest, "")); q.Topics > 100 || q.Topics < 1 || bytes > 2000 {
				t.Errorf("%d of a type are shown, with names of %d bytes", q.Topics, bytes)
			}
		}
	})
}
