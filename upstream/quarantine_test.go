package upstream

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery/deliverytest"
)

// touchyPlane has every name, and ends each stream on which it is requested for one of some names.
type touchyPlane struct {
	*testing.T

	mu      sync.Mutex
	ends    map[string]codes.Code
	ignores []string      // names that it does not answer
	ponders time.Duration // before it ends a stream
	streams int
	open    map[*scripted]askedFor // what is requested on each stream
}

// asks returns what is requested on each stream that is open.
func (p *touchyPlane) asks() (all []askedFor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, asked := range p.open {
		copied := askedFor{}
		for typeURL, names := range asked {
			copied[typeURL] = maps.Clone(names)
		}
		all = append(all, copied)
	}
	return all
}

// endAll ends all streams.
func (p *touchyPlane) endAll(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for st := range p.open {
		select {
		case st.end <- err:
		default: // it ends already
		}
	}
}

// note notes what is requested of a type on a stream from now on: more and fewer in delta, all in SotW.
func (p *touchyPlane) note(st *scripted, typeURL string, more, fewer []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if st.form == SotW || p.open[st][typeURL] == nil {
		p.open[st][typeURL] = map[string]bool{}
	}
	for _, name := range more {
		p.open[st][typeURL][name] = true
	}
	for _, name := range fewer {
		delete(p.open[st][typeURL], name)
	}
}

func (p *touchyPlane) refuses(name string) (codes.Code, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	code, ends := p.ends[name]
	return code, ends
}

// ignore sets the names that the control plane does not answer.
func (p *touchyPlane) ignore(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ignores = names
}

func (p *touchyPlane) isIgnored(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.ignores, name)
}

func (p *touchyPlane) forgive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends = nil
}

func (p *touchyPlane) opened() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams
}

// serve serves one stream.
func (p *touchyPlane) serve(st *scripted) {
	p.mu.Lock()
	p.streams++
	if p.open == nil {
		p.open = map[*scripted]askedFor{}
	}
	p.open[st] = askedFor{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.open, st)
	}()
	sent, asked := map[string][]string{}, map[string]bool{}
	for {
		m, err := st.recv()
		if err != nil {
			return
		}
		var names, left []string
		var typeURL string
		switch r := m.(type) {
		case *discoveryv3.DeltaDiscoveryRequest:
			left = r.GetResourceNamesUnsubscribe()
			if names, typeURL = r.GetResourceNamesSubscribe(), r.GetTypeUrl(); len(names)+len(left) == 0 && !asked[typeURL] {
				names = []string{cache.Wildcard}
			}
		case *discoveryv3.DiscoveryRequest:
			if names, typeURL = r.GetResourceNames(), r.GetTypeUrl(); len(names) == 0 && len(sent[typeURL]) == 0 {
				names = []string{cache.Wildcard}
			}
			if slices.Equal(names, sent[typeURL]) {
				continue // an ACK
			}
			sent[typeURL] = names
		}
		asked[typeURL] = true
		p.note(st, typeURL, names, left)
		for _, name := range names {
			if code, ends := p.refuses(name); ends {
				time.Sleep(p.ponders)
				st.end <- status.Errorf(code, "not the workload's: %q", name)
				return
			}
		}
		if i := slices.Index(names, cache.Wildcard); i >= 0 {
			names = slices.Replace(slices.Clone(names), i, i+1, "one", "two")
		}
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return p.isIgnored(name) })
		if len(names) == 0 {
			continue
		}
		word := "eds"
		if typeURL == typeURLs["cds"] {
			word = "cds"
		}
		var resp proto.Message = deltaResponse(p.T, word, "1", names...)
		if st.form == SotW {
			d := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: "1", Nonce: "1"}
			for _, r := range resp.(*discoveryv3.DeltaDiscoveryResponse).GetResources() {
				d.Resources = append(d.Resources, r.GetResource())
			}
			resp = d
		}
		if st.send(resp) != nil {
			return
		}
	}
}

// isolating runs a test with a touchy control plane.
func isolating(t *testing.T, protocol Protocol, ends map[string]codes.Code, test func(*bench, *touchyPlane)) {
	t.Helper()
	isolatingAs(t, Options{Protocol: protocol}, ends, test)
}

// aFeed feeds a scope from a touchyPlane, as the relay does with some setting.
type aFeed struct {
	*bench
	statuses func() []Status
}

// quarantined returns how many names and wildcards are in a quarantine.
func (f *aFeed) quarantined() (n int) {
	synctest.Wait()
	for _, st := range f.statuses() {
		n += st.Quarantined
	}
	return n
}

// isolatingEverywhere runs a test with a touchy control plane, for each form, on an aggregated stream and on streams of
// single types, without a wildcard of the type and with one.
func isolatingEverywhere(t *testing.T, o Options, test func(f *aFeed, p *touchyPlane, typ string)) {
	t.Helper()
	for _, protocol := range []Protocol{Delta, SotW} {
		for _, aggregated := range []bool{true, false} {
			for _, wildcard := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/aggregated=%t/wildcard=%t", protocol, aggregated, wildcard), func(t *testing.T) {
					o := o
					o.Protocol = protocol
					onePlane(t, o, aggregated, func(f *aFeed, p *touchyPlane) {
						typ := "eds"
						if wildcard {
							typ = "cds"
							set := f.cache.WatchSet(key(typ, cache.Wildcard), &setWatcher{})
							pass(time.Second)
							if status, _ := set.Status(); status != cache.Present {
								t.Fatalf("the wildcard is %s", status)
							}
						}
						test(f, p, typ)
					})
				})
			}
		}
	}
}

// onePlane runs a test with a touchy control plane.
func onePlane(t *testing.T, o Options, aggregated bool, test func(*aFeed, *touchyPlane)) {
	t.Helper()
	p := &touchyPlane{T: t}
	synctest.Test(t, func(t *testing.T) {
		f := &aFeed{}
		streams := make(chan *scripted, 100)
		var end func()
		if aggregated {
			b := &bench{T: t, script: &script{streams: streams}, logs: &logBuffer{}}
			b.start(o, b.script)
			b.stream.Close() // the Aggregated takes its place
			<-b.stream.Done()
			of := NewAggregated(testScope, b.conn, &corev3.Node{Id: "relay"}, o, deliverytest.Direct(b.cache), slog.New(slog.NewTextHandler(b.logs, nil)))
			b.source.Source = of
			f.bench, f.statuses = b, of.Statuses
			end = func() {
				of.Close()
				<-of.Done()
				b.stop()
			}
		} else {
			s := &separate{bench: &bench{T: t, logs: &logBuffer{}}, opened: make(chan *typed, 100)}
			s.open(o, func(...grpc.ServerOption) *grpc.Server {
				return grpc.NewServer(grpc.UnknownServiceHandler(s.handle))
			})
			f.bench, f.statuses = s.bench, func() []Status { return s.streams.Statuses() }
			go func() {
				for st := range s.opened {
					streams <- &st.scripted
				}
			}()
			end = func() {
				s.stop()
				close(s.opened)
			}
		}
		done := make(chan struct{})
		var serving sync.WaitGroup
		serving.Go(func() {
			for {
				select {
				case st := <-streams:
					serving.Go(func() { p.serve(st) })
				case <-done:
					return
				}
			}
		})
		p.T = t
		test(f, p)
		end()
		close(done)
		serving.Wait()
	})
}

func isolatingAs(t *testing.T, o Options, ends map[string]codes.Code, test func(*bench, *touchyPlane)) {
	t.Helper()
	run(t, o, func(b *bench) {
		p := &touchyPlane{T: b.T, ends: ends}
		done := make(chan struct{})
		var serving sync.WaitGroup
		serving.Go(func() {
			for {
				select {
				case st := <-b.script.streams:
					serving.Go(func() { p.serve(st) })
				case <-done:
					return
				}
			}
		})
		test(b, p)
		b.stream.Close()
		<-b.stream.Done()
		close(done)
		serving.Wait()
	})
}

func TestOneBadNameCostsNobodyElse(t *testing.T) {
	for _, protocol := range []Protocol{Delta, SotW} {
		for _, code := range []codes.Code{codes.InvalidArgument, codes.PermissionDenied, codes.Internal, codes.ResourceExhausted} {
			t.Run(string(protocol)+"/"+code.String(), func(t *testing.T) {
				bad := map[string]codes.Code{"bad": code, "worse": code}
				isolating(t, protocol, bad, func(b *bench, p *touchyPlane) {
					before := b.watch("eds", "held")
					pass(time.Second)
					b.wantPresent(before["held"])
					good := b.watch("eds", "a", "bad", "b", "c", "worse", "d")
					other := b.watch("cds", "cluster")
					pass(5 * time.Second)
					b.wantPresent(before["held"], good["a"], good["b"], good["c"], good["d"], other["cluster"])
					for _, name := range []string{"bad", "worse"} {
						st := good[name].State()
						if st.Err == nil || !strings.Contains(st.Err.Message, "not the workload's") {
							t.Errorf("%s has %+v, want the control plane's words", name, st)
						}
					}
					if n := b.stream.Status().Quarantined; n != 2 {
						t.Errorf("%d are in quarantine, want 2", n)
					}
					// A later name is served at once.
					later := b.watch("eds", "later")
					pass(100 * time.Millisecond)
					b.wantPresent(later["later"])

					opened := p.opened()
					pass(10 * time.Minute)
					if n := p.opened() - opened; n > 100 {
						t.Errorf("%d streams in ten minutes", n)
					}
					p.forgive()
					pass(time.Minute)
					b.wantPresent(good["bad"], good["worse"])
					if n := b.stream.Status().Quarantined; n != 0 {
						t.Errorf("%d are in quarantine, want none", n)
					}
				})
			})
		}
	}
}

// A client that requests a bad name with others, and leaves before it is found, does not end the stream of all each time
// that it comes.
func TestASuspectWhoseClientLeavesStaysOne(t *testing.T) {
	isolating(t, Delta, map[string]codes.Code{"bad": codes.NotFound}, func(b *bench, _ *touchyPlane) {
		held := b.watch("eds", "held")
		pass(time.Second)
		var ended time.Time
		for round := range 5 {
			var all []*watcher
			for i := range 8 {
				w := &watcher{}
				all = append(all, w)
				b.cache.Watch(key("eds", fmt.Sprint(round, "-", i)), w)
			}
			w := &watcher{}
			b.cache.Watch(key("eds", "bad"), w)
			pass(250 * time.Millisecond)
			for _, w := range append(all, w) {
				b.cache.Unwatch(w)
			}
			pass(3 * time.Second)
			switch at := b.stream.Status().LastErrorAt; {
			case round == 0:
				ended = at
			case !at.Equal(ended):
				t.Fatalf("the stream has ended again in round %d", round)
			}
		}
		b.wantPresent(held["held"])
	})
}

// If the client of a bad name leaves while that is tried together with another name, the other one is not taken for the
// bad one.
func TestASuspectThatLeavesItsTrialLeavesNobodyBlamed(t *testing.T) {
	for _, protocol := range []Protocol{Delta, SotW} {
		t.Run(string(protocol), func(t *testing.T) {
			isolating(t, protocol, map[string]codes.Code{"bad": codes.InvalidArgument}, func(b *bench, p *touchyPlane) {
				p.ponders = 500 * time.Millisecond
				held := b.watch("eds", "held")
				pass(time.Second)
				b.stream.Start(key("eds", "bad"))
				good := b.watch("eds", "good")
				pass(p.ponders * 3 / 2) // the stream has ended, and both are tried
				b.stream.Stop(key("eds", "bad"))
				for range 200 {
					pass(10 * time.Millisecond)
					if st := good["good"].State(); st.Err != nil && strings.Contains(st.Err.Message, "not the workload's") {
						t.Errorf("a good name has the error of a bad one: %v", st.Err)
						break
					}
				}
				b.wantPresent(held["held"], good["good"])
			})
		})
	}
}

// The same for each form, service and crossing of names with a wildcard, from the first request of a stream on, with each
// code that a control plane may have for it.
func TestOneBadNameCostsNobodyElseAnywhere(t *testing.T) {
	for _, code := range []codes.Code{codes.NotFound, codes.PermissionDenied, codes.InvalidArgument, codes.Unauthenticated} {
		t.Run(code.String(), func(t *testing.T) {
			isolatingEverywhere(t, Options{}, func(f *aFeed, p *touchyPlane, typ string) {
				p.mu.Lock()
				p.ends = map[string]codes.Code{"bad": code}
				p.mu.Unlock()
				good := f.watch(typ, "a", "bad", "b")
				pass(5 * time.Second)
				f.wantPresent(good["a"], good["b"])
				if st := good["bad"].State(); st.Err == nil || !strings.Contains(st.Err.Message, "not the workload's") {
					f.Errorf("bad has %+v, want the control plane's words", st)
				}
				if n := f.quarantined(); n != 1 {
					f.Errorf("%d are in quarantine, want 1", n)
				}
				if f.logs.count("it is requested alone") == 0 {
					f.Errorf("the log does not say that a name is requested alone")
				}
				later := f.watch(typ, "later")
				pass(100 * time.Millisecond)
				f.wantPresent(later["later"])
				opened := p.opened()
				pass(10 * time.Minute)
				if n := p.opened() - opened; n > 50 {
					f.Errorf("%d streams in ten minutes", n)
				}
				f.wantPresent(good["a"], good["b"], later["later"])
				p.forgive()
				pass(time.Minute)
				f.wantPresent(good["bad"])
				if n := f.quarantined(); n != 0 {
					f.Errorf("%d are in quarantine, want none", n)
				}
			})
		})
	}
}

// What the control plane denies before it has answered anything on a stream does not keep others from being answered.
func TestDeniedNamesFreezeNobody(t *testing.T) {
	isolatingEverywhere(t, Options{}, func(f *aFeed, p *touchyPlane, typ string) {
		end := func(names map[string]codes.Code) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.ends = names
		}
		end(map[string]codes.Code{"w1": codes.PermissionDenied, "w2": codes.Unauthenticated})
		f.watch(typ, "w1", "w2")
		pass(40 * time.Second)
		later := f.watch(typ, "later")
		pass(40 * time.Second)
		f.wantPresent(later["later"])
		opened := p.opened()
		pass(10 * time.Minute)
		if n := p.opened() - opened; n > 100 {
			f.Errorf("%d streams in ten minutes", n)
		}
	})
}

// The same where another name of the type is on the names stream that was answered on the first one.
func TestADeniedNameOnTheNamesStreamFreezesNobody(t *testing.T) {
	for _, aggregated := range []bool{true, false} {
		t.Run(fmt.Sprintf("aggregated=%t", aggregated), func(t *testing.T) {
			onePlane(t, Options{Protocol: SotW}, aggregated, func(f *aFeed, p *touchyPlane) {
				held := f.watch("cds", "held")
				pass(time.Second)
				p.mu.Lock()
				p.ends = map[string]codes.Code{"denied": codes.PermissionDenied}
				p.mu.Unlock()
				p.endAll(status.Error(codes.Unavailable, "restarting"))
				synctest.Wait()
				denied := f.watch("cds", "denied") // waits with the other name for the next stream
				synctest.Wait()
				f.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{}) // moves both names to the names stream
				pass(5 * time.Second)
				if !slices.ContainsFunc(p.asks(), func(asked askedFor) bool { return asked[typeURLs["cds"]]["held"] }) {
					f.Errorf("no open stream requests what was answered before")
				}
				later := f.watch("cds", "later")
				pass(5 * time.Second)
				f.wantPresent(held["held"], later["later"])
				if st := denied["denied"].State(); st.Err == nil || !strings.Contains(st.Err.Message, "ends the stream when this is requested") {
					f.Errorf("denied has %+v, want the control plane's words", st)
				}
			})
		})
	}
}

// A name that was denied once is tried again, also if the control plane has answered nothing, and ends streams for another
// name.
func TestADeniedNameIsTriedAgain(t *testing.T) {
	isolatingEverywhere(t, Options{}, func(f *aFeed, p *touchyPlane, typ string) {
		p.mu.Lock()
		p.ends = map[string]codes.Code{"denied": codes.PermissionDenied, "bad": codes.InvalidArgument}
		p.mu.Unlock()
		of := f.watch(typ, "denied", "bad")
		pass(40 * time.Second)
		for _, e := range of {
			if st := e.State(); st.Err == nil {
				f.Errorf("%s has %+v, want the control plane's words", e.Key().Name, st)
			}
		}
		p.mu.Lock()
		p.ends = map[string]codes.Code{"bad": codes.InvalidArgument}
		p.mu.Unlock()
		pass(time.Minute)
		f.wantPresent(of["denied"])
	})
}

// However many bad names there are, each is tried again, and served when it is bad no longer.
func TestEachBadNameHasItsTurn(t *testing.T) {
	isolatingEverywhere(t, Options{}, func(f *aFeed, p *touchyPlane, typ string) {
		const many = 6
		var names []string
		bad := map[string]codes.Code{}
		for i := range many {
			names = append(names, fmt.Sprint("bad-", i))
			bad[names[i]] = codes.InvalidArgument
		}
		p.mu.Lock()
		p.ends = bad
		p.mu.Unlock()
		of := f.watch(typ, names...)
		pass(10 * time.Minute)
		for _, name := range slices.Backward(names) {
			p.mu.Lock()
			delete(bad, name)
			p.mu.Unlock()
			pass((many + 1) * 30 * time.Second)
			f.wantPresent(of[name])
		}
	})
}

// touchyPoller is a control plane that is polled, and refuses each poll with one of some names.
type touchyPoller struct{ refuses map[string]int }

// Invoke implements grpc.ClientConnInterface.
func (touchyPoller) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Unimplemented, "no methods")
}

// NewStream implements grpc.ClientConnInterface.
func (p touchyPoller) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return newPollStream(ctx, method, p, time.Second), nil
}

func (p touchyPoller) poll(_ context.Context, _ string, r *discoveryv3.DiscoveryRequest) (*answerJSON, error) {
	var resources []string
	for _, name := range r.GetResourceNames() {
		if code, refused := p.refuses[name]; refused {
			return nil, fmt.Errorf("POST: %w", &pollError{code, "not the workload's: " + name})
		}
		resources = append(resources, fmt.Sprintf(`{"@type": %q, "cluster_name": %q}`, typeURLs["eds"], name))
	}
	return parseJSON(fmt.Appendf(nil, `{"version_info": "of %d", "resources": [%s]}`, len(resources), strings.Join(resources, ", ")))
}

func TestOneBadNameCostsNobodyElseInPolls(t *testing.T) {
	for _, code := range []int{400, 401, 403, 404, 422, 500} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &separate{bench: &bench{T: t, logs: &logBuffer{}}}
				s.feed(touchyPoller{map[string]int{"bad": code}}, Options{Protocol: REST})
				defer s.stop()
				before := s.watch("eds", "held")
				pass(2 * time.Second)
				s.wantPresent(before["held"])
				good := s.watch("eds", "a", "bad", "b")
				pass(8 * time.Second)
				s.wantPresent(before["held"], good["a"], good["b"])
				if st := good["bad"].State(); st.Err == nil || !strings.Contains(st.Err.Message, "not the workload's") {
					t.Errorf("bad has %+v, want the control plane's words", st)
				}
			})
		})
	}
}

// What nobody requests any more is not tried again; who requests it later costs nobody a reconnect.
func TestABadNameThatNobodyRequestsIsNotTried(t *testing.T) {
	isolating(t, Delta, map[string]codes.Code{"bad": codes.InvalidArgument}, func(b *bench, p *touchyPlane) {
		b.watch("eds", "a")
		w := &watcher{}
		b.cache.Watch(key("eds", "bad"), w)
		pass(5 * time.Second)
		b.cache.Unwatch(w)
		pass(2 * time.Minute) // it lingers
		opened := p.opened()
		pass(time.Hour)
		if n := p.opened() - opened; n != 0 {
			t.Errorf("%d streams were opened for what nobody requests", n)
		}
		again := b.watch("eds", "bad", "b")
		pass(time.Second)
		b.wantPresent(again["b"])
		if st := again["bad"].State(); st.Err == nil {
			t.Errorf("bad has %+v", st)
		}
	})
}

// What was answered before may be what the control plane ends streams for.
func TestANameThatWasAnsweredMayBecomeBad(t *testing.T) {
	isolating(t, Delta, nil, func(b *bench, p *touchyPlane) {
		good := b.watch("eds", "a", "b", "revoked")
		pass(time.Second)
		p.mu.Lock()
		p.ends = map[string]codes.Code{"revoked": codes.InvalidArgument, "new": codes.InvalidArgument}
		p.mu.Unlock()
		b.watch("eds", "new") // ends the stream
		pass(30 * time.Second)
		later := b.watch("eds", "c")
		pass(5 * time.Second)
		b.wantPresent(later["c"], good["a"], good["b"], good["revoked"])
	})
}

// A suspect that was answered is back on the Stream, while the trial goes on for the others. What the trial still hears of
// it is older than what the Stream has.
func TestWhatIsBackHearsNothingFromItsTrial(t *testing.T) {
	for _, protocol := range []Protocol{Delta, SotW} {
		t.Run(string(protocol), func(t *testing.T) {
			respond := func(b *bench, st *scripted, nonce string) {
				if protocol == SotW {
					b.respond(st, sotwResponse(t, "eds", nonce, "good"))
				} else {
					b.respond(st, deltaResponse(t, "eds", nonce, "good"))
				}
			}
			run(t, Options{Protocol: protocol}, func(b *bench) {
				of := b.watch("eds", "good", "silent")
				first := b.next()
				first.request(t)
				first.end <- status.Error(codes.Unknown, "a bad day")
				trial := b.next()
				trial.request(t)
				respond(b, trial, "1")
				back := b.next()
				back.request(t)
				respond(b, back, "3")
				respond(b, trial, "2")
				if got, want := of["good"].State().Resource.Value(), value(t, "eds", "good", "3"); !bytes.Equal(got, want) {
					t.Errorf("good is %q, want %q", got, want)
				}
			})
		})
	}
}

func (b *bench) wantPresent(entries ...*cache.Entry) {
	b.Helper()
	synctest.Wait()
	var missing []string
	for _, e := range entries {
		if s := e.State(); s.Resource == nil {
			missing = append(missing, e.Key().Name+" is "+s.Status.String())
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		b.Errorf("%s; want all present", strings.Join(missing, ", "))
	}
}

// What the Stream holds of a name through a glob is older than what the trial of the name has brought.
func TestWhatIsBackKeepsWhatItsTrialHasBrought(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		b.cache.WatchSet(key("eds", membersGlob), &setWatcher{})
		st := b.next()
		st.request(t)
		b.respond(st, deltaResponse(t, "eds", "1", member1))
		member := b.watch("eds", member1)[member1]
		synctest.Wait()
		st.end <- status.Error(codes.Unknown, "a bad day")
		st = b.next()
		st.request(t)
		b.respond(st, deltaResponse(t, "eds", "2", member2))
		st.end <- status.Error(codes.Unknown, "another one")
		for range 2 { // the Stream's and the trial's
			st = b.next()
			if names := st.delta(t).GetResourceNamesSubscribe(); slices.Equal(names, []string{member1}) {
				b.respond(st, deltaResponse(t, "eds", "3", names...))
			}
		}
		pass(time.Second)
		b.wantText(member, "3")
	})
}

// What a glob lacks is removed when the control plane says so on the Stream, also if a trial has brought it.
func TestAGlobThatIsBackIsWhole(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		glob := b.cache.WatchSet(key("eds", membersGlob), &setWatcher{})
		b.watch("eds", member1)
		st := b.next()
		st.request(t)
		st.end <- status.Error(codes.Unknown, "a bad day")
		trial := b.next()
		trial.request(t)
		b.respond(trial, deltaResponse(t, "eds", "1", member1, member2))
		pass(acquittal)
		if got := members(glob); got != "present [1=1 2=1]" {
			t.Fatalf("the trial has brought %s", got)
		}
		st = b.next()
		for requested := map[string]bool{}; !requested[membersGlob] || !requested[member1]; {
			for _, name := range st.delta(t).GetResourceNamesSubscribe() {
				requested[name] = true
			}
		}
		b.respond(st, deltaResponse(t, "eds", "2", member1))
		pass(2 * time.Second)
		if got := members(glob); got != "present [1=2]" {
			t.Errorf("the glob is %s, want only what the Stream has", got)
		}
		gone := deltaResponse(t, "eds", "3")
		gone.RemovedResources = []string{member1}
		b.respond(st, gone)
		if got := members(glob); got != "present []" {
			t.Errorf("the glob is %s, want none", got)
		}
	})
}

// A wildcard that is requested for globs is tried together with them.
func TestABadWildcardThatFeedsGlobsCostsNobodyElse(t *testing.T) {
	for _, o := range []Options{{Protocol: SotW}, {Protocol: Delta, NoGlobs: true}} {
		t.Run(string(o.Protocol), func(t *testing.T) {
			isolatingAs(t, o, map[string]codes.Code{cache.Wildcard: codes.InvalidArgument}, func(b *bench, p *touchyPlane) {
				before := b.watch("eds", "held")
				pass(time.Second)
				glob := b.cache.WatchSet(key("cds", membersGlob), &setWatcher{})
				pass(20 * time.Second)
				good := b.watch("eds", "a")
				pass(time.Second)
				b.wantPresent(before["held"], good["a"])
				set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
				pass(20 * time.Second)
				good = b.watch("eds", "b")
				pass(time.Second)
				b.wantPresent(good["b"])
				for _, s := range []*cache.Set{glob, set} {
					if _, err := s.Status(); err == nil {
						t.Errorf("%s has no error", s.Key().Name)
					}
				}
				p.forgive()
				pass(time.Minute)
				for _, s := range []*cache.Set{glob, set} {
					if status, _ := s.Status(); status != cache.Present {
						t.Errorf("%s is %s", s.Key().Name, status)
					}
				}
			})
		})
	}
}
