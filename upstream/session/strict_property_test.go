package session

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// strictPlane is a control plane that answers a SotW request only if it has every name of it, and then if its state has
// changed, or names were added.
type strictPlane struct {
	has     map[string]bool
	version int
	nonce   int
	known   []string                      // that it has answered last
	request *discoveryv3.DiscoveryRequest // nil once it is answered
}

func (p *strictPlane) receive(req *discoveryv3.DiscoveryRequest) {
	if req.GetResponseNonce() == "" || req.GetResponseNonce() == strconv.Itoa(p.nonce) {
		p.request = req
	}
}

// respond returns the response that is due, nil if none is.
func (p *strictPlane) respond() *Response {
	if p.request == nil {
		return nil
	}
	names, isNew := p.request.GetResourceNames(), false
	for _, name := range names {
		if !p.has[name] {
			return nil
		}
		isNew = isNew || !slices.Contains(p.known, name)
	}
	version := strconv.Itoa(p.version)
	if !isNew && p.request.GetVersionInfo() == version {
		return nil
	}
	p.nonce++
	p.known, p.request = names, nil
	return &Response{Nonce: strconv.Itoa(p.nonce), Version: version, Resources: workResources(names, version)}
}

// Clients request names that a strict control plane does not have, give them up, and it gets some of them. Whatever they
// do, others receive its changes soon, and once it has a name, clients receive that.
func TestStrictProperty(t *testing.T) {
	const (
		tick    = 100 * time.Millisecond
		longest = silenceWait + trialWait // may pass before a change comes
	)
	names := workNames("%02d", 14)
	always, others := names[:2], names[2:]
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			w := newWorker(t, true)
			plane := &strictPlane{has: map[string]bool{always[0]: true, always[1]: true}, version: 1}
			var changed time.Time // since when the always present names have something newer
			round := func() {
				w.now = w.now.Add(tick)
				w.Conclude(w.now, DefaultResponseTimeout, Selective)
				if w.of.NeedStream(w.Begun()) {
					w.of.Lost()
					w.Session = SotW.Begin(w.of)
					plane.known, plane.request, plane.nonce = nil, nil, 0
				}
				for {
					for _, m := range w.Requests(w.now, maxRequestBytes) {
						plane.receive(m.(*discoveryv3.DiscoveryRequest))
					}
					answer := plane.respond()
					if answer == nil {
						return
					}
					answer.TypeURL = w.of.TypeURL()
					if u, nack := w.Response(w.now, answer); nack != "" {
						t.Fatal(nack)
					} else if slices.ContainsFunc(u.Changes, func(c cache.Change) bool { return c.Name == always[0] }) {
						changed = time.Time{}
					}
				}
			}
			change := func() {
				if plane.version++; changed.IsZero() {
					changed = w.now
				}
			}
			wanted := map[string]bool{}
			want := func(name string) {
				if !wanted[name] {
					wanted[name] = true
					u := w.of.NewUpdate()
					w.of.Start(name, nil, &u)
				}
			}
			w.of = withKind(nil, cache.Scope{Authority: "a"}, typeURLs["eds"], names[0])
			w.of.Names.answers = AnswersKnown
			w.Session = SotW.Begin(w.of)
			want(always[0])
			want(always[1])
			round()
			for range 3000 {
				if r.IntN(20) == 0 {
					change()
				}
				switch name := others[r.IntN(len(others))]; r.IntN(60) {
				case 0, 1:
					want(name)
				case 2:
					if wanted[name] && !plane.has[name] {
						delete(wanted, name)
						w.of.Stop(name)
					}
				case 3:
					if r.IntN(4) == 0 {
						plane.has[name] = true
						change()
					}
				}
				round()
				if !changed.IsZero() && w.now.Sub(changed) > longest {
					t.Fatalf("at %s: nothing has come of a change for %s", w.now.Sub(t0), w.now.Sub(changed))
				}
			}
			missing := len(others)
			for name := range plane.has {
				if want(name); name != always[0] && name != always[1] {
					missing--
				}
			}
			change()
			for end := w.now.Add(longestRest + 4*time.Duration(missing)*time.Second); w.now.Before(end); {
				round()
				if r.IntN(10) == 0 {
					change()
				}
			}
			for name := range plane.has {
				if sub := w.of.Names.subs[name]; sub.parked || sub.answer.Resource == nil {
					t.Errorf("%s is not requested, or has not come", name)
				}
			}
		})
	}
}
