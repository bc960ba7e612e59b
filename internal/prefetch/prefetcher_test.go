package prefetch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// plane is a source in which each name refers to others, also in loops. It counts the topics that have been started.
type plane struct {
	t      *testing.T
	topics *cache.Cache
	mu     sync.Mutex
	fed    map[cache.Key]bool
	most   int
	refers func(word, name string) []string
	wg     sync.WaitGroup
}

func startPlane(t *testing.T, refers func(word, name string) []string) *plane {
	p := &plane{t: t, fed: map[cache.Key]bool{}, refers: refers}
	p.topics = cache.New(p, cache.Options{Linger: time.Minute, IdleEntries: 100})
	return p
}

// Start implements cache.Source: the answer arrives at once.
func (p *plane) Start(k cache.Key) {
	p.mu.Lock()
	p.fed[k] = true
	p.most = max(p.most, len(p.fed))
	p.mu.Unlock()
	p.wg.Go(func() { p.send(k) })
}

func (p *plane) send(k cache.Key) {
	for word, typeURL := range words {
		if k.TypeURL == typeURL {
			r := resource(p.t, word, k.Name, p.refers(word, k.Name)...)
			p.topics.Apply(cache.Update{Scope: k.Scope, TypeURL: k.TypeURL, Changes: []cache.Change{{Name: k.Name, Resource: r}}})
		}
	}
}

// Refresh implements cache.Source.
func (*plane) Refresh(cache.Key) {}

// Stop implements cache.Source.
func (p *plane) Stop(k cache.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.fed, k)
}

func (p *plane) count() (now, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.fed), p.most
}

// Each of 50 clusters refers to three others at random, so that there are many loops.
func tangled(word, name string) (to []string) {
	switch word {
	case "listener":
		return []string{"r" + name[1:]}
	case "route", "cluster":
		for range 3 {
			to = append(to, fmt.Sprint("c", rand.IntN(50)))
		}
	}
	return to
}

// Whatever clients do concurrently, after they have left no topic is watched any more, and the started ones stop
// after the linger time.
func TestNothingIsLeftOfClientsThatHaveGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := startPlane(t, tangled)
		defer source.topics.Close()
		p := New(source.topics, Settings{Lease: 10 * time.Second, Most: 1000})
		var clients sync.WaitGroup
		for n := range 20 {
			clients.Go(func() {
				for range 20 {
					a := p.Join(n%3, func() Names { return testNames{denied: fmt.Sprint("c", n%3)} })
					var wanted []cache.Key
					for range rand.IntN(4) {
						word := []string{"listener", "route", "cluster"}[rand.IntN(3)]
						k := cache.Key{Scope: scope, TypeURL: words[word], Name: fmt.Sprint(word[:1], rand.IntN(5))}
						a.Want(k)
						wanted = append(wanted, k)
						<-time.After(time.Duration(rand.IntN(8)) * time.Second)
					}
					for _, k := range wanted {
						a.Unwant(k)
					}
					a.Leave()
				}
			})
		}
		clients.Wait()
		synctest.Wait()
		if s := p.Stats(); s.Ahead != 0 || s.Begun == 0 {
			t.Errorf("%d names are ahead of nobody, of %d", s.Ahead, s.Begun)
		}
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if now, most := source.count(); now != 0 || most == 0 {
			t.Errorf("%d topics are fed, of %d", now, most)
		}
		if len(p.audiences) > 0 {
			t.Errorf("%d audiences are left", len(p.audiences))
		}
		p.Close()
		source.wg.Wait()
	})
}

// A control plane can make up any number of references. The subscriptions that they cause are bounded.
func TestReferencesThatAControlPlaneMakesUpAreBounded(t *testing.T) {
	many := func(prefix string, n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprint(prefix, i))
		}
		return names
	}
	tests := map[string]struct {
		refers func(word, name string) []string
		most   int // names that are fed
		bound  string
	}{
		"many in one resource": {func(word, _ string) []string {
			if word == "listener" {
				return many("r", 3000)
			}
			return []string{"c"}
		}, 1 + mostOfResource + 1, "resource"},
		"many at each level": {func(word, name string) []string {
			if word == "cluster" {
				return []string{name + "x"}
			}
			return many(name+"-", 100)
		}, 1 + mostOfScope, "scope"},
		"many levels": {func(word, name string) []string { return []string{name + "x"} }, 1 + mostLevels, "levels"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := startPlane(t, test.refers)
				defer source.topics.Close()
				p := New(source.topics, Settings{Lease: 10 * time.Second, Most: 1 << 20})
				a := p.Join("", func() Names { return testNames{} })
				k := cache.Key{Scope: scope, TypeURL: words["listener"], Name: "l"}
				a.Want(k)
				for synctest.Wait(); ; synctest.Wait() {
					if p.inbox.Empty() {
						break
					}
				}
				if now, _ := source.count(); now != test.most {
					t.Errorf("%d names are fed, want %d", now, test.most)
				}
				if s := p.Stats(); s.Refused[test.bound] == 0 {
					t.Errorf("refused %v, want some for %s", s.Refused, test.bound)
				}
				a.Unwant(k)
				a.Leave()
				<-time.After(2 * time.Minute)
				synctest.Wait()
				if now, _ := source.count(); now != 0 {
					t.Errorf("%d names are left", now)
				}
				p.Close()
				source.wg.Wait()
			})
		})
	}
}

// However many clients have one Listener, there is one node for it, and one prefetch.
func TestClientsOfOneAudienceCostOnePrefetch(t *testing.T) {
	w := newWorld()
	defer w.close()
	k := cache.Key{Scope: scope, TypeURL: words["listener"], Name: "l"}
	var all []*Audience
	for range 10000 {
		a := w.prefetcher.Join("class", func() Names { return testNames{} })
		a.Want(k)
		all = append(all, a)
	}
	w.settle()
	w.apply(t, "listener l -> r1 r2", false)
	w.settle()
	if n := len(slices.CompactFunc(all, func(a, b *Audience) bool { return a == b })); n != 1 {
		t.Errorf("%d audiences, want one", n)
	}
	if n := len(all[0].nodes); n != 3 {
		t.Errorf("%d nodes, want one for the Listener and each RouteConfiguration", n)
	}
	if s := w.prefetcher.Stats(); s.Begun != 2 {
		t.Errorf("%d names were prefetched, want 2", s.Begun)
	}
}

// The remembered references are bounded in bytes.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	l := newLRU[int]()
	long := make([]byte, longestName)
	for i := range 10000 {
		l.put(i, []target{{name: string(long)}})
		l.get(0)
	}
	if l.bytes > mostKnown || l.bytes < mostKnown/2 || len(l.elements) != l.order.Len() {
		t.Errorf("%d bytes of %d entries, %d in order; want up to %d bytes", l.bytes, len(l.elements), l.order.Len(), mostKnown)
	}
	if _, ok := l.get(0); !ok {
		t.Error("the entry that is used most is gone")
	}
	if _, ok := l.get(1); ok {
		t.Error("the entry that is used least is there")
	}
}
