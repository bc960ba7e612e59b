package gate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/rollout"
)

// TestChangedSettingsApplyToARunningRollout: one of four clients has a change, which is three times as large as the
// accepted resource, when settings change.
func TestChangedSettingsApplyToARunningRollout(t *testing.T) {
	type state struct {
		Phase           rollout.Phase
		Frozen          bool
		Clients, Waits  int
		Cohorts         int
		AfterAnotherHas int // clients with the change after half an hour, if those who have it took it
	}
	for _, tt := range []struct {
		name   string
		frozen bool // by the operator, before
		change func(*Options)
		want   state
	}{
		{"none", false, func(*Options) {}, state{rollout.Rolling, false, 1, 0, 1, 1}},
		{"a shorter soak", false, func(o *Options) { o.Soak = rollout.Time(time.Minute) }, state{rollout.Rolling, false, 1, 0, 1, 2}},
		{"a shorter soak and another step", false, func(o *Options) { o.Soak, o.Steps = rollout.Time(time.Minute), []float64{0.75} }, state{rollout.Rolling, false, 1, 0, 1, 3}},
		{"more first clients", false, func(o *Options) { o.First = 2 }, state{rollout.Rolling, false, 2, 0, 1, 2}},
		{"frozen", false, func(o *Options) { o.Soak, o.Frozen = rollout.Time(time.Minute), true }, state{rollout.Rolling, true, 1, 0, 1, 1}},
		{"frozen by the operator, and no change of that", true, func(o *Options) { o.Soak = rollout.Time(time.Minute) }, state{rollout.Rolling, true, 1, 0, 1, 1}},
		{"a smaller growth waits for a person", false, func(o *Options) { o.Grow = 2 }, state{rollout.Idle, false, 0, 1, 1, 0}},
		{"each client is a cohort", false, func(o *Options) { o.Cohort = "node" }, state{rollout.Rolling, false, 4, 0, 4, 4}},
	} {
		t.Run(tt.name, rapid.MakeCheck(func(t *rapid.T) {
			w := &trialWorld{fixture: newFixture(t), may: map[string]map[string]bool{}}
			defer w.cache.Close()
			w.source["a"] = "1"
			w.send(true)
			for i := range 4 {
				name := fmt.Sprint(i)
				m, _ := w.gate.controller.Join(w.scope, Client{Node: name, Cohort: "c", Eligible: true, Wake: func() {}, CohortNow: func(cache.Scope) string {
					if w.gate.opts.Load().Cohort == "node" {
						return name
					}
					return "c"
				}})
				m.Settled()
				w.members = append(w.members, m)
			}
			w.step()
			w.source["a"] = strings.Repeat("2", 3)
			w.send(true)
			if tt.frozen {
				w.gate.controller.Freeze(Which{})
			}
			o := *w.gate.opts.Load()
			tt.change(&o)
			w.settings = &o
			w.gate.controller.Configure()
			w.step() // has what the settings ask for
			w.step() // has what the cohorts ask for
			is := state{
				Phase: w.gate.machine.Phase(), Frozen: w.gate.machine.Status().Frozen, Clients: w.gate.onNew(), Waits: w.gate.pending.nWaits,
				Cohorts: len(w.gate.cohorts.clients),
			}
			w.each(func(m *Member, showing uint64) { m.Sent(showing); m.Acked(showing) })
			w.step()
			w.gate.began = w.gate.began.Add(-30 * time.Minute)
			w.step()
			if is.AfterAnotherHas = w.gate.onNew(); is != tt.want {
				t.Fatalf("it is %+v, want %+v", is, tt.want)
			}
		}))
	}
}

// joinFour makes four clients of one cohort join. All of them have ACKed the accepted state.
func (w *trialWorld) joinFour() {
	for i := range 4 {
		m, _ := w.gate.controller.Join(w.scope, Client{Node: fmt.Sprint(i), Cohort: "c", Eligible: true, Wake: func() {}})
		m.Settled()
		w.members = append(w.members, m)
	}
	w.step()
}

// A stream reports that it sends nothing new. Meanwhile more has become new, so the report does not make room for a
// further first client.
func TestAnUntouchedClientIsOneAsOfTheNewestRevision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &trialWorld{fixture: newFixture(t), may: map[string]map[string]bool{}}
		defer w.cache.Close()
		w.source["a"], w.source["b"] = "1", "1"
		w.send(true)
		w.joinFour()
		w.source["a"] = "2"
		w.send(true)
		w.step()
		before := map[*Member]uint64{}
		w.each(func(m *Member, _ uint64) { before[m] = m.Revision() })
		if len(before) != 1 {
			t.Fatalf("%d clients are on the new side, want one", len(before))
		}
		w.source["b"] = "2"
		w.send(true)
		w.step()
		late := rapid.Bool().Draw(t, "late")
		w.each(func(m *Member, showing uint64) {
			if revision := before[m]; late {
				m.Untouched(showing, revision)
			} else {
				m.Untouched(showing, m.Revision())
			}
		})
		w.step()
		want := 2
		if late {
			want = 1
		}
		if n := w.gate.onNew(); n != want {
			t.Fatalf("after a report, late %v, %d clients are on the new side, want %d", late, n, want)
		}
	})
}

// TestAChangeThatNoLongerWaitsIsRolledOut: with a larger growth, a change joins the first step, and waits for
// the next rollout after that.
func TestAChangeThatNoLongerWaitsIsRolledOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &trialWorld{fixture: newFixture(t), may: map[string]map[string]bool{}}
		defer w.cache.Close()
		w.gate.opts.Load().Grow = 2
		w.source["a"], w.source["b"] = "1", "1"
		w.send(true)
		w.joinFour()
		w.source["a"], w.source["b"] = "222", "2"
		w.send(true)
		began := rapid.Bool().Draw(t, "began")
		if began {
			w.each(func(m *Member, showing uint64) { m.Sent(showing); m.Acked(showing) })
			w.step()
			w.pass()
			w.step()
		}
		if w.gate.pending.nWaits != 1 || w.gate.machine.Began() != began {
			t.Fatalf("%d wait, began: %v", w.gate.pending.nWaits, w.gate.machine.Began())
		}
		o := *w.gate.opts.Load()
		o.Grow = 1000
		w.settings = &o
		w.gate.controller.Configure()
		w.step()
		if has := membersOf(w.newSet, w.cache)["a"]; (has == "222") == began {
			t.Fatalf("began: %v, and the new side has %q", began, has)
		}
		for range 20 {
			w.each(func(m *Member, showing uint64) { m.Sent(showing); m.Acked(showing) })
			w.step()
			w.pass()
			w.step()
		}
		w.check(true)
	})
}
