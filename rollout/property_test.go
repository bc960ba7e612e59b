package rollout

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/internal/chain"
)

// world is the knowledge of a Machine's caller: the state that each client was shown, and the accepted state.
type world struct {
	t       *rapid.T
	m       *Machine
	o       Options
	now     Time
	clients map[string]*actor
	content string
	refused map[string]bool
	rollout int // the number of those that are over
	frozen  bool
}

// actor is a client.
type actor struct {
	id, cohort, who  string
	present, settled bool
	shown            bool
	sent             bool
	// In a rollout: how often the client was shown the new state, and how often it returned. rejectedIn is the
	// rollout in which it rejected a change.
	rollout, shows, returns int
	rejectedIn              int
}

func (w *world) perform() {
	w.m.Tick(w.now)
	for _, d := range w.m.Decisions() {
		switch d.Kind {
		case ShowNew:
			w.showNew(d.Client)
		case ShowAccepted:
			w.clients[d.Client].shown = false
		case GoBack:
			w.endRollout()
		case Accept:
			w.endRollout()
			w.content = ""
		case SendNACK:
			w.refused[w.content] = true
		case PassOver:
		}
	}
	switch s := w.m.Status(); s.Phase {
	case Stopped, Idle, Held:
		for _, a := range w.clients {
			if a.shown {
				w.t.Fatalf("%s, and %s has the new state", s.Phase, a.id)
			}
		}
	case Rolling:
	}
	if next := w.m.Next(w.now); next != 0 && next <= w.now {
		w.t.Fatal("wants to be called at once")
	}
	w.m.Tick(w.now)
	if more := w.m.Decisions(); len(more) > 0 {
		w.t.Fatalf("a second look brings %v", more)
	}
}

func (w *world) showNew(id string) {
	a := w.clients[id]
	switch {
	case a == nil || !a.present:
		w.t.Fatalf("%s is shown the new state and is not there", id)
	case !a.settled:
		w.t.Fatalf("%s is shown the new state before it has taken the accepted one", id)
	case a.shown:
		w.t.Fatalf("%s is shown the new state twice", id)
	case w.refused[w.content]:
		w.t.Fatalf("%s is shown %q, which was refused", id, w.content)
	case w.frozen:
		w.t.Fatalf("%s is shown the new state of a machine that is frozen", id)
	case a.rejectedIn == w.rollout+1:
		w.t.Fatalf("%s is shown what it has rejected", id)
	}
	if a.rollout != w.rollout+1 {
		a.rollout, a.shows, a.returns = w.rollout+1, 0, 0
	}
	if a.shows++; a.shows > 1+a.returns {
		w.t.Fatalf("%s is tried %d times, and came back %d times", id, a.shows, a.returns)
	}
	a.shown, a.sent = true, false
}

func (w *world) endRollout() {
	w.rollout++
	for _, a := range w.clients {
		a.shown, a.sent = false, false
	}
}

// pass lets time pass. It returns how often the machine was called.
func (w *world) pass(span Time, most int) {
	end := w.now + span
	for n := 0; ; n++ {
		next := w.m.Next(w.now)
		if next == 0 || next > end {
			break
		}
		if n == most {
			w.t.Fatalf("%d calls, and it is still %v", n, w.m.Status())
		}
		w.now = next
		w.perform()
	}
	w.now = end
}

func (w *world) come(a *actor) {
	a.present, a.settled, a.shown, a.sent = true, false, false, false
	a.returns++
	w.m.Joined(w.now, Client{ID: a.id, Cohort: a.cohort, Who: a.who, Eligible: true})
}

// TestMachineNeverErrs checks these rules for random events. A client is shown the new state only after it has ACKed
// the accepted one, only once unless it has returned, never with refused content, and never while the machine is
// frozen. No client has the new state after the end of a rollout. Every rollout ends.
func TestMachineNeverErrs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{
			First: rapid.IntRange(1, 2).Draw(t, "first"), Steps: []float64{0.1, 0.5}, Soak: Time(30 * time.Second),
			Rejections: rapid.IntRange(1, 2).Draw(t, "rejections"), Deaths: rapid.IntRange(1, 2).Draw(t, "deaths"),
		}
		w := &world{t: t, m: NewMachine(o), o: o, now: Time(time.Hour), clients: map[string]*actor{}, refused: map[string]bool{}}
		for i := range rapid.IntRange(0, 12).Draw(t, "clients") {
			id := fmt.Sprintf("client-%d", i)
			w.clients[id] = &actor{id: id, cohort: fmt.Sprint(i % 2), who: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "who")}
		}
		some := func(which func(*actor) bool) *actor {
			var of []string
			for i := range len(w.clients) {
				if id := fmt.Sprintf("client-%d", i); which(w.clients[id]) {
					of = append(of, id)
				}
			}
			if len(of) == 0 {
				return nil
			}
			return w.clients[rapid.SampledFrom(of).Draw(t, "client")]
		}
		event := func(which func(*actor) bool, do func(*actor)) func(*rapid.T) {
			return func(*rapid.T) {
				if a := some(which); a != nil {
					do(a)
					w.perform()
				}
			}
		}
		shown := func(a *actor) bool { return a.shown }
		t.Repeat(map[string]func(*rapid.T){
			"come":      event(func(a *actor) bool { return !a.present }, w.come),
			"settle":    event(func(a *actor) bool { return a.present && !a.settled }, func(a *actor) { a.settled = true; w.m.Settled(w.now, a.id) }),
			"die":       event(func(a *actor) bool { return a.present }, func(a *actor) { a.present, a.settled, a.shown = false, false, false; w.m.Died(w.now, a.id) }),
			"leave":     event(func(a *actor) bool { return a.present }, func(a *actor) { a.present, a.settled, a.shown = false, false, false; w.m.Left(w.now, a.id) }),
			"send":      event(shown, func(a *actor) { a.sent = true; w.m.Sent(w.now, a.id) }),
			"ack":       event(func(a *actor) bool { return a.shown && a.sent }, func(a *actor) { w.m.Acked(w.now, a.id) }),
			"untouched": event(func(a *actor) bool { return a.shown && !a.sent }, func(a *actor) { w.m.Untouched(w.now, a.id) }),
			"reject": event(func(a *actor) bool { return a.shown && a.sent && a.rejectedIn != w.rollout+1 }, func(a *actor) {
				a.rejectedIn = w.rollout + 1
				w.m.Rejected(w.now, a.id, "no", chain.Rejecters{})
			}),
			"change": func(t *rapid.T) {
				w.content = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "content")
				w.m.Changed(w.now, w.content, rapid.IntRange(0, 4).Draw(t, "hidden") == 0)
				w.perform()
			},
			"approve": func(*rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "yes") == 0 {
					delete(w.refused, w.content)
					w.m.Approve(w.now)
					w.perform()
				}
			},
			"freeze": func(*rapid.T) {
				if rapid.IntRange(0, 4).Draw(t, "yes") == 0 {
					w.frozen = true
					w.m.Freeze(w.now)
					w.perform()
				}
			},
			"thaw": func(*rapid.T) { w.frozen = false; w.m.Thaw(w.now); w.perform() },
			"pass": func(t *rapid.T) {
				w.pass(Time(rapid.IntRange(1, 120).Draw(t, "seconds"))*Time(time.Second), math.MaxInt)
			},
		})
		// Any rollout ends by the passing of time alone.
		w.frozen = false
		w.m.Thaw(w.now)
		w.perform()
		const steps, calls = 3, 40
		w.pass(steps*maxSeries*o.Soak, steps*calls+len(w.clients))
		if s := w.m.Status(); s.Phase != Idle && s.Phase != Stopped {
			t.Fatalf("it does not end: %v", s)
		}
	})
}

// TestABadChangeReachesFewClients checks how many clients get a change that all clients reject: one of each cohort.
func TestABadChangeReachesFewClients(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewMachine(Options{First: 1, Steps: []float64{0.01, 0.1, 0.5}, Soak: Time(30 * time.Second), Rejections: 1, Deaths: 2})
		cohorts := rapid.IntRange(1, 5).Draw(t, "cohorts")
		for i := range rapid.IntRange(1, 200).Draw(t, "clients") {
			id := fmt.Sprintf("client-%d", i)
			m.Joined(0, Client{ID: id, Cohort: fmt.Sprint(i % cohorts), Eligible: true})
			m.Settled(0, id)
		}
		m.Changed(0, "bad", false)
		touched := 0
		for now := Time(0); ; now = m.Next(now) {
			m.Tick(now)
			for _, d := range m.Decisions() {
				if d.Kind == ShowNew {
					touched++
					m.Sent(now, d.Client)
					m.Rejected(now, d.Client, "no", chain.Rejecters{})
				}
			}
			m.Tick(now)
			if m.Next(now) == 0 {
				break
			}
		}
		if s := m.Status(); s.Phase != Stopped || touched > cohorts {
			t.Fatalf("%s, and %d clients of %d cohorts were touched", s.Phase, touched, cohorts)
		}
	})
}
