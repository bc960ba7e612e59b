package upstream

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/costs"
)

// The quarantine when there are many suspects, or new ones again and again.

// endFor makes the control plane end streams for names, in addition to those so far.
func (p *touchyPlane) endFor(code codes.Code, names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ends := maps.Clone(p.ends)
	if ends == nil {
		ends = map[string]codes.Code{}
	}
	for _, name := range names {
		ends[name] = code
	}
	p.ends = ends
}

// numbered returns n names that sort in order.
func numbered(what string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s%05d", what, i))
	}
	return names
}

// untilPresent returns the time until an entry has a resource, at most limit.
func untilPresent(e *cache.Entry, limit time.Duration) time.Duration {
	began := time.Now()
	for time.Since(began) < limit && e.State().Resource == nil {
		pass(50 * time.Millisecond)
	}
	return time.Since(began)
}

// A good name is served soon, however many bad names of others sort before it.
func TestAGoodNameDoesNotWaitForTheBadOnes(t *testing.T) {
	for _, test := range []struct {
		bad    int
		good   string
		within time.Duration
	}{
		{8, "z", 5 * time.Second},
		{20, "z", 5 * time.Second},
		{20, "a00010z", 5 * time.Second},
		{100, "z", 5 * time.Second},
		{100, "a00050z", 5 * time.Second},
	} {
		t.Run(fmt.Sprintf("%d/%s", test.bad, test.good), func(t *testing.T) {
			isolatingEverywhere(t, Options{}, func(f *aFeed, p *touchyPlane, typ string) {
				p.ponders = 90 * time.Millisecond
				bad := numbered("a", test.bad)
				p.endFor(codes.InvalidArgument, bad...)
				opened := p.opened()
				of := f.watch(typ, append(bad, test.good)...)
				if took := untilPresent(of[test.good], 10*test.within); took > test.within {
					f.Errorf("a good name was served after %s and %d streams, want at most %s", took, p.opened()-opened, test.within)
				} else {
					t.Logf("served after %s and %d streams", took, p.opened()-opened)
				}
				pass(time.Minute)
				for _, name := range bad {
					if st := of[name].State(); st.Err == nil {
						f.Errorf("%s has %+v, want the control plane's words", name, st)
						break
					}
				}
				if n := f.quarantined(); n != test.bad {
					f.Errorf("%d are in quarantine, want %d", n, test.bad)
				}
				opened = p.opened()
				pass(10 * time.Minute)
				if n := p.opened() - opened; n > 50 {
					f.Errorf("%d streams in ten minutes for what is known to be bad", n)
				}
			})
		})
	}
}

// Once the control plane has ended a stream for a name, the next bad one ends no stream on which others are served, and a
// good one is served as soon as before.
func TestANewBadNameEndsNoStreamOfOthers(t *testing.T) {
	isolatingEverywhere(t, Options{}, func(f *aFeed, p *touchyPlane, typ string) {
		f.watch(typ, "held")
		pass(time.Second)
		p.endFor(codes.InvalidArgument, "bad")
		f.watch(typ, "bad")
		pass(5 * time.Second)
		lastErrors := func() (all []time.Time) {
			for _, st := range f.statuses() {
				all = append(all, st.LastErrorAt)
			}
			return all
		}
		ended := lastErrors()
		for round := range 5 {
			bad, good := fmt.Sprint("bad-", round), fmt.Sprint("good-", round)
			p.endFor(codes.InvalidArgument, bad)
			of := f.watch(typ, bad, good)
			if took := untilPresent(of[good], time.Minute); took > time.Second {
				f.Errorf("round %d: a good name beside a bad one was served after %s", round, took)
			}
			pass(time.Second)
			if st := of[bad].State(); st.Err == nil {
				f.Errorf("round %d: the bad name has %+v, want the control plane's words", round, st)
			}
			alone := f.watch(typ, fmt.Sprint("alone-", round))
			pass(50 * time.Millisecond)
			for _, e := range alone {
				f.wantPresent(e)
			}
		}
		if now := lastErrors(); !slices.Equal(now, ended) {
			f.Errorf("streams have ended at %v, and before at %v", now, ended)
		}
		if n := f.quarantined(); n != 6 {
			f.Errorf("%d are in quarantine, want 6", n)
		}
		// What a wildcard has is given at once, and what nothing has ended does not count.
		opened := p.opened()
		pass(touchyFor)
		pass(11 * time.Minute)
		if n := p.opened() - opened; n > 80 {
			f.Errorf("%d streams in 21 minutes", n)
		}
	})
}

// What starts while the control plane cannot be reached is told so, also where it would be tried first.
func TestWhatIsTriedFirstHearsOfAnOutage(t *testing.T) {
	isolating(t, Delta, map[string]codes.Code{"bad": codes.InvalidArgument}, func(b *bench, p *touchyPlane) {
		b.watch("eds", "held", "bad")
		pass(5 * time.Second)
		p.endFor(codes.Unavailable, "first", "second")
		of := b.watch("eds", "first")
		pass(time.Second)
		maps.Copy(of, b.watch("eds", "second"))
		pass(5 * time.Second)
		for name, e := range of {
			if st := e.State(); st.Err == nil || st.Err.Code != codes.Unavailable {
				t.Errorf("%s has %+v, want the error of an outage", name, st)
			}
		}
	})
}

// What is suspect for the first time does not wait for the next trial of what is known to be bad.
func TestNewSuspectsDoNotWaitForOldOnes(t *testing.T) {
	isolating(t, Delta, nil, func(b *bench, p *touchyPlane) {
		p.endFor(codes.InvalidArgument, numbered("old", 5)...)
		b.watch("eds", append(numbered("old", 5), "held")...)
		pass(20 * time.Minute)
		for round := range 20 {
			bad, good := fmt.Sprint("bad-", round), fmt.Sprint("good-", round)
			p.endFor(codes.InvalidArgument, bad)
			of := b.watch("eds", bad, good)
			if took := untilPresent(of[good], time.Minute); took > 3*time.Second {
				t.Errorf("round %d: a good name was served after %s", round, took)
			}
			pass(7 * time.Second)
		}
	})
}

// Nor does it wait until all of the many that became suspect before were tried.
func TestNewSuspectsDoNotWaitForManyOthers(t *testing.T) {
	isolatingEverywhere(t, Options{}, func(f *aFeed, p *touchyPlane, typ string) {
		f.watch(typ, "held")
		pass(time.Second)
		bad := numbered("a", 200)
		p.endFor(codes.InvalidArgument, append(bad, "b")...)
		f.watch(typ, bad...)
		pass(15 * time.Second)
		of := f.watch(typ, "b", "z")
		if took := untilPresent(of["z"], 3*time.Minute); took > 5*time.Second {
			f.Errorf("a good name was served after %s", took)
		}
		pass(3 * time.Minute)
		if n := f.quarantined(); n != len(bad)+1 {
			f.Errorf("%d are in quarantine, want %d", n, len(bad)+1)
		}
	})
}

// A client that makes up a bad name each time that a stream is open does not make the relay open streams without end, and
// keeps nobody from being served.
func TestBadNamesThatAreMadeUpCostFewStreams(t *testing.T) {
	for _, each := range []int{1, 10} {
		t.Run(fmt.Sprint(each), func(t *testing.T) {
			isolatingEverywhere(t, Options{}, func(f *aFeed, p *touchyPlane, typ string) {
				f.watch(typ, "held")
				pass(time.Second)
				const minutes = 3
				opened := p.opened()
				good := map[string]*cache.Entry{}
				for round := range minutes * 60 {
					bad := numbered(fmt.Sprintf("bad-%d-", round), each)
					p.endFor(codes.InvalidArgument, bad...)
					f.watch(typ, bad...)
					if round%20 == 0 {
						name := fmt.Sprint("z", round)
						maps.Copy(good, f.watch(typ, name))
					}
					pass(time.Second)
				}
				if n := (p.opened() - opened) / minutes; n > 240 {
					f.Errorf("%d streams per minute", n)
				} else {
					t.Logf("%d streams per minute", n)
				}
				if each == 1 {
					for _, e := range good {
						f.wantPresent(e)
					}
				}
			})
		})
	}
}

// Names that were never tried do not displace the memory of a bad one.
func TestABadNameIsRememberedWhateverElseLeaves(t *testing.T) {
	isolating(t, Delta, map[string]codes.Code{"bad": codes.InvalidArgument, "worse": codes.InvalidArgument}, func(b *bench, _ *touchyPlane) {
		b.watch("eds", "held")
		pass(time.Second)
		b.stream.Start(key("eds", "bad"))
		pass(5 * time.Second)
		b.stream.Stop(key("eds", "bad"))
		pass(time.Second)
		for _, name := range append(numbered("junk", 4*maxKnown), "worse") {
			b.stream.Start(key("eds", name))
		}
		pass(20 * time.Millisecond)
		for _, name := range append(numbered("junk", 4*maxKnown), "worse") {
			b.stream.Stop(key("eds", name))
		}
		pass(5 * time.Second)
		ended := b.stream.Status().LastErrorAt
		b.stream.Start(key("eds", "bad"))
		pass(5 * time.Second)
		if at := b.stream.Status().LastErrorAt; !at.Equal(ended) {
			t.Error("the stream has ended again for a name that was known to be bad")
		}
	})
}

// The same if its client leaves again before the name was tried.
func TestABadNameThatLeavesUntriedIsStillRemembered(t *testing.T) {
	isolating(t, Delta, map[string]codes.Code{"bad": codes.InvalidArgument, "worse": codes.InvalidArgument}, func(b *bench, p *touchyPlane) {
		p.ponders = 500 * time.Millisecond
		b.watch("eds", "held")
		pass(time.Second)
		b.stream.Start(key("eds", "bad"))
		pass(5 * time.Second)
		b.stream.Stop(key("eds", "bad"))
		b.stream.Start(key("eds", "worse"))
		pass(p.ponders + 250*time.Millisecond)
		ended := b.stream.Status().LastErrorAt
		if n := b.stream.Status().Quarantined; n != 1 {
			t.Errorf("%d are in quarantine, want one that is being tried", n)
		}
		for range 2 {
			b.stream.Start(key("eds", "bad"))
			pass(10 * time.Millisecond)
			b.stream.Stop(key("eds", "bad"))
			pass(10 * time.Millisecond)
		}
		b.stream.Start(key("eds", "bad"))
		pass(5 * time.Second)
		if at := b.stream.Status().LastErrorAt; !at.Equal(ended) {
			t.Error("the stream has ended again for a name that was known to be bad")
		}
	})
}

// What is remembered and requested again is tried together.
func TestRememberedNamesAreTriedTogether(t *testing.T) {
	isolating(t, Delta, map[string]codes.Code{"bad": codes.InvalidArgument}, func(b *bench, p *touchyPlane) {
		p.ponders = 500 * time.Millisecond
		b.watch("eds", "held")
		pass(time.Second)
		names := append(numbered("good", 100), "bad")
		for _, name := range names {
			b.stream.Start(key("eds", name))
		}
		pass(1200 * time.Millisecond) // the stream has ended, and the first trial
		for _, name := range names {
			b.stream.Stop(key("eds", name))
		}
		pass(5 * time.Second)
		p.forgive()
		ended, opened := b.stream.Status().LastErrorAt, p.opened()
		of := b.watch("eds", names...)
		pass(2 * time.Second)
		for _, e := range of {
			b.wantPresent(e)
		}
		if n := p.opened() - opened; n != 1 || !b.stream.Status().LastErrorAt.Equal(ended) {
			t.Errorf("%d streams were opened, want one trial", n)
		}
	})
}

// A stream that was healthy for long has not ended because of what was requested on it, also if a proxy ends each one in
// the same way.
func TestStreamsThatWereHealthyForLongBlameNothing(t *testing.T) {
	isolating(t, Delta, nil, func(b *bench, p *touchyPlane) {
		held := b.watch("eds", "a", "b")
		pass(time.Second)
		answered := []string{"a", "b"}
		for round := range 5 {
			later := fmt.Sprint("later-", round)
			held[later] = b.watch("eds", later)[later]
			pass(time.Hour)
			answered = append(answered, later)
			p.ignore(answered...) // from now on, as the relay lists their versions
			p.endAll(status.Error(codes.Internal, "stream terminated by RST_STREAM"))
			pass(time.Second)
			if n := b.stream.Status().Quarantined; n > 0 {
				t.Errorf("round %d: %d are in quarantine", round, n)
			}
		}
		if b.logs.count("perhaps because of what it has not answered") > 0 {
			t.Error("the log blames names")
		}
		for _, e := range held {
			b.wantPresent(e)
		}
	})
}

// The work for each suspect that leaves does not depend on how many others there are.
func TestWorkOfSuspectsThatLeave(t *testing.T) {
	for _, wildcard := range []bool{false, true} {
		t.Run(fmt.Sprintf("wildcard=%t", wildcard), func(t *testing.T) {
			costs.Linear(t, 3000, func(t *testing.T, n int) {
				isolating(t, Delta, map[string]codes.Code{"bad": codes.InvalidArgument}, func(b *bench, p *touchyPlane) {
					p.ponders = 500 * time.Millisecond
					if wildcard {
						b.stream.Start(key("cds", cache.Wildcard)) // keeps the names on the names stream
					}
					pass(time.Second)
					names := append(numbered("j", n), "bad")
					for _, name := range names {
						b.stream.inbox.Add(note{key: key("cds", name)})
					}
					b.stream.inbox.Wake()        // now, so that one request has all of them
					pass(800 * time.Millisecond) // the first trials go on
					if got := quarantinedOf(b); got != n+1 {
						t.Errorf("%d are in quarantine, want %d", got, n+1)
					}
					for _, name := range names {
						b.stream.Stop(key("cds", name))
						synctest.Wait()
					}
					pass(time.Second)
					if got := quarantinedOf(b); got != 0 {
						t.Errorf("%d are in quarantine, want none", got)
					}
				})
			})
		})
	}
}

// The same for suspects that are known to be bad, and for the news of another type meanwhile.
func TestWorkWhileThereAreSuspects(t *testing.T) {
	costs.Linear(t, 50, func(t *testing.T, n int) {
		isolating(t, Delta, nil, func(b *bench, p *touchyPlane) {
			names := numbered("bad", n)
			p.endFor(codes.InvalidArgument, names...)
			for _, name := range names {
				b.stream.Start(key("eds", name))
			}
			pass(2 * time.Minute)
			if b.stream.Status().Quarantined != n {
				t.Error("not all are in quarantine")
			}
			for i := range 40 * n {
				b.stream.Refresh(key("cds", fmt.Sprint(i)))
				synctest.Wait()
			}
			for _, name := range names {
				b.stream.Stop(key("eds", name))
				synctest.Wait()
			}
		})
	})
}

// quarantinedOf returns how many names and wildcards are in the quarantines of a Stream and its names stream.
func quarantinedOf(b *bench) (n int) {
	synctest.Wait()
	for _, st := range b.stream.Statuses() {
		n += st.Quarantined
	}
	return n
}
