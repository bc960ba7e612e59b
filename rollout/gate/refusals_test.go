package gate

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/rollout"
)

// Rejected resources are set apart when another change arrives, even if the control plane sends them again with it,
// as every full state does. The new topics then have the accepted resources and no version, and no client is sent the
// rejected resources.
func TestRejectedResourcesAreSetApartWhenSentAgainWithOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &trialWorld{fixture: newFixture(t), may: map[string]map[string]bool{}}
		say := func(version, from, to int) {
			for i := from; i < to; i++ {
				w.source[fmt.Sprint("n", i)] = fmt.Sprintf("%d of n%d", version, i)
			}
		}
		const all = 8
		bad := rapid.IntRange(1, all-1).Draw(t, "rejected")
		w.one = "1"
		say(1, 0, all)
		w.send(true)
		w.allowAll(w.source, w.one)
		for i := range rapid.IntRange(1, 3).Draw(t, "clients") {
			m, _ := w.gate.controller.Join(w.scope, Client{Node: fmt.Sprint(i), Cohort: fmt.Sprint(i), Eligible: true, Wake: func() {}})
			m.Settled()
			w.members = append(w.members, m)
		}
		w.look()
		say(2, 0, bad)
		w.send(true)
		w.reject(true)
		again := rapid.Bool().Draw(t, "the same once more")
		if again {
			w.send(true)
			w.look()
		}
		say(2, bad, all)
		w.send(true)
		w.look()
		isNew := membersOf(w.newSet, w.cache)
		for i := range all {
			name := fmt.Sprint("n", i)
			want := 2
			if i < bad {
				want = 1
			}
			if is := isNew[name]; is != fmt.Sprintf("%d of %s", want, name) {
				t.Errorf("the new topic has %q of %s, of which version %d is not rejected", is, name, want)
			}
		}
		if v := w.newSet.Origin().String(); v == fmt.Sprint(w.version) {
			t.Errorf("the new topic is said to be version %s, of which some is set apart", v)
		}
		if !w.each(func(*Member, uint64) {}) {
			t.Error("no client is tried with the rest")
		}
	})
}

// A client's rejection of what the control plane has replaced meanwhile does not stop the rollout of the replacement.
func TestARejectionOfWhatWasReplacedStopsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &trialWorld{fixture: newFixture(t), may: map[string]map[string]bool{}}
		w.source["a"], w.source["b"], w.one = "1", "1", "1"
		w.send(true)
		w.allowAll(w.source, w.one)
		m, _ := w.gate.controller.Join(w.scope, Client{Node: "n", Cohort: "c", Eligible: true, Wake: func() {}})
		m.Settled()
		w.members = append(w.members, m)
		w.source["a"] = "bad"
		w.send(false, "a")
		w.look()
		m.Sent(m.Showing())
		w.source["a"] = "good"
		partly := rapid.Bool().Draw(t, "another resource was rejected with it, and is still there")
		rejected := []uint64{resourceOf("a", "bad").Hash()}
		if partly {
			w.source["b"] = "2"
			rejected = append(rejected, resourceOf("b", "2").Hash())
		}
		w.send(false, "a", "b")
		w.look()
		m.Rejected(m.Showing(), "no", chain.Rejecters{}, rejected)
		w.look()
		if stopped := w.gate.machine.Phase() == rollout.Stopped; stopped != partly {
			t.Errorf("the rollout has stopped: %v, want %v", stopped, partly)
		}
	})
}
