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

// strictPlay plays clients and a strict control plane.
type strictPlay struct {
	*worker
	plane strictPlane
	came  map[string]int // the version in which each name last came
}

func newStrictPlay(t *testing.T, answers Answers, has ...string) *strictPlay {
	p := &strictPlay{worker: newWorker(t, true), plane: strictPlane{has: map[string]bool{}, version: 1}, came: map[string]int{}}
	for _, name := range has {
		p.plane.has[name] = true
	}
	p.of = withKind(nil, cache.Scope{Authority: "a"}, typeURLs["eds"], has[0])
	p.of.Names.answers = answers
	p.Session = SotW.Begin(p.of)
	p.want(has...)
	p.pass(time.Second)
	return p
}

func (p *strictPlay) want(names ...string) {
	u := p.of.NewUpdate()
	for _, name := range names {
		p.of.Start(name, nil, &u)
	}
}

// pass lets time pass.
func (p *strictPlay) pass(wait time.Duration) {
	const tick = 100 * time.Millisecond
	for end := p.now.Add(wait); p.now.Before(end); {
		p.now = p.now.Add(tick)
		p.Conclude(p.now, DefaultResponseTimeout, Selective)
		if p.of.NeedStream(p.Begun()) {
			p.of.Lost()
			p.Session = SotW.Begin(p.of)
			p.plane.known, p.plane.request, p.plane.nonce = nil, nil, 0
		}
		for p.exchange() {
		}
	}
}

// exchange sends requests and receives the response. It returns whether there was one.
func (p *strictPlay) exchange() bool {
	for _, m := range p.Requests(p.now, maxRequestBytes) {
		p.plane.receive(m.(*discoveryv3.DiscoveryRequest))
	}
	r := p.plane.respond()
	if r == nil {
		return false
	}
	r.TypeURL = p.of.TypeURL()
	u, nack := p.Response(p.now, r)
	if nack != "" {
		p.t.Fatal(nack)
	}
	for i := range u.Changes {
		p.came[u.Changes[i].Name] = p.plane.version
	}
	return true
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
			p := newStrictPlay(t, AnswersKnown, always...)
			wanted := map[string]bool{}
			var changed time.Time // since when a name that is always there has something newer
			for range 3000 {
				if r.IntN(20) == 0 {
					p.plane.version++
				}
				switch name := others[r.IntN(len(others))]; r.IntN(60) {
				case 0, 1:
					if !wanted[name] {
						wanted[name] = true
						p.want(name)
					}
				case 2:
					if wanted[name] && !p.plane.has[name] {
						delete(wanted, name)
						p.of.Stop(name)
					}
				case 3:
					if r.IntN(4) == 0 {
						p.plane.has[name] = true
						p.plane.version++
					}
				}
				before := p.now
				p.pass(tick)
				switch {
				case p.came[always[0]] == p.plane.version:
					changed = time.Time{}
				case changed.IsZero():
					changed = before
				case p.now.Sub(changed) > longest:
					t.Fatalf("at %s: nothing has come of a change for %s", p.now.Sub(t0), p.now.Sub(changed))
				}
			}
			missing := 0
			for _, name := range others {
				switch {
				case !p.plane.has[name] && wanted[name]:
					missing++
				case p.plane.has[name] && !wanted[name]:
					p.want(name)
				}
			}
			for end := p.now.Add(longestRest + 4*time.Duration(missing+1)*time.Second); p.now.Before(end); {
				p.plane.version++
				p.pass(time.Second)
			}
			for name := range p.plane.has {
				if p.came[name] < p.plane.version-5 {
					t.Errorf("%s has not come", name)
				}
			}
		})
	}
}

// A strict control plane has nothing new of many names when a client requests a wrong one. When it has, that comes.
func TestStrictSilence(t *testing.T) {
	for _, answers := range []Answers{AnswersAuto, AnswersKnown} {
		for _, n := range []int{mostInAll / 2, mostInAll + 1} {
			t.Run(fmt.Sprint(answers, n), func(t *testing.T) {
				names := workNames("%03d", n+2)
				p := newStrictPlay(t, answers, names[:n]...)
				for _, wrong := range names[n:] {
					p.want(wrong)
					p.pass(2 * time.Minute)
					p.plane.version++
					p.pass(2 * time.Second)
					for _, name := range names[:n] {
						if p.came[name] != p.plane.version {
							t.Fatalf("%s has not come", name)
						}
					}
				}
			})
		}
	}
}
