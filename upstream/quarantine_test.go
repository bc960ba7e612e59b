package upstream

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// touchyPlane has every name, and ends each stream on which it is requested for one of some names.
type touchyPlane struct {
	*testing.T

	mu      sync.Mutex
	ends    map[string]codes.Code
	streams int
}

func (p *touchyPlane) refuses(name string) (codes.Code, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	code, ends := p.ends[name]
	return code, ends
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
	p.mu.Unlock()
	sent := map[string][]string{}
	for {
		m, err := st.recv()
		if err != nil {
			return
		}
		var names []string
		var typeURL string
		switch r := m.(type) {
		case *discoveryv3.DeltaDiscoveryRequest:
			names, typeURL = r.GetResourceNamesSubscribe(), r.GetTypeUrl()
		case *discoveryv3.DiscoveryRequest:
			if names, typeURL = r.GetResourceNames(), r.GetTypeUrl(); slices.Equal(names, sent[typeURL]) {
				continue // an ACK
			}
			sent[typeURL] = names
		}
		for _, name := range names {
			if code, ends := p.refuses(name); ends {
				st.end <- status.Errorf(code, "not the workload's: %q", name)
				return
			}
		}
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
