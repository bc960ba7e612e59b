package downstream

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/propagation"
)

// milestones counts what a Tracker measures.
type milestones struct{ reached, missed atomic.Int64 }

func (*milestones) Measures(propagation.Kind) {}

func (m *milestones) Reached(propagation.Kind, propagation.Stage, propagation.Client, time.Duration) {
	m.reached.Add(1)
}

func (m *milestones) Missed(_ propagation.Kind, _ propagation.Stage, clients int64) {
	m.missed.Add(clients)
}

// silent is a source that says nothing by itself.
type silent struct{}

func (silent) Start(cache.Key)   {}
func (silent) Refresh(cache.Key) {}
func (silent) Stop(cache.Key)    {}

// Clients leave while a change is on its way to them: a change that still waited for one of them would be given up
// after the limit, with that client as one that missed it.
func TestNoChangeWaitsForAClientThatHasLeft(t *testing.T) {
	names := []string{"a", "b", "c"}
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		for _, leaves := range []struct {
			how string
			act func(*groupClient)
		}{
			{"the group", func(c *groupClient) { c.asks(t, nil, names[:1]) }},
			{"the relay", func(*groupClient) {}},
		} {
			t.Run(form+", "+leaves.how, func(t *testing.T) {
				reached := int64(0)
				for range 100 {
					synctest.Test(t, func(t *testing.T) {
						m := &milestones{}
						tracker := propagation.NewTracker(m, func(authority, typeURL string) (string, string) { return authority, typeURL })
						tracker.Measure(true)
						c := cache.New(silent{}, cache.Options{IdleEntries: 100, Changes: tracker})
						s := NewServer(c, newClusterNames, Options{MaxResponseBytes: DefaultMaxResponseBytes, Log: slog.New(slog.DiscardHandler)})
						change := func(n int) {
							u := cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType, Receipt: &propagation.Receipt{At: time.Now()}}
							for _, name := range names {
								u.Changes = append(u.Changes, cache.Change{Name: name, Resource: newTestResource(endpointType, name, fmt.Sprint(n), fmt.Sprint(n))})
							}
							c.Apply(u)
						}
						var clients []*groupClient
						for range 6 {
							cl := newGroupClient(s, form)
							cl.asks(t, names, nil)
							clients = append(clients, cl)
						}
						change(0)
						var wg sync.WaitGroup
						for _, cl := range clients {
							wg.Go(func() {
								cl.reads(t, false)
								leaves.act(cl)
								cl.close()
							})
						}
						for n := range 20 {
							change(n + 1)
						}
						wg.Wait()
						time.Sleep(2 * propagation.Limit)
						if n := m.missed.Load(); n > 0 {
							t.Errorf("%d clients missed a change, want none: all have left", n)
						}
						reached += m.reached.Load()
						c.Close()
						tracker.Close()
					})
				}
				if reached == 0 {
					t.Error("nothing was measured")
				}
			})
		}
	}
}
