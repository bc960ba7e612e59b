package failover

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestMachineNeverErrs checks the invariants of each decision, for events in any order: which
// servers are open, that the active one is open, and that the machine does not
// ask for needless calls. Once all servers are up, the machine must settle on the first one.
func TestMachineNeverErrs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{
			Unreachable: rapid.Bool().Draw(t, "unreachable"),
			Grace:       30 * time.Second, Timeout: 15 * time.Second, Hysteresis: 5 * time.Second,
		}
		names := []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "servers")]
		m := NewMachine(names, o)
		now := time.Unix(1_000_000, 0)
		open := map[int]bool{}
		active := -1
		take := func() {
			for _, a := range m.Actions() {
				switch a.Kind {
				case Open:
					if open[a.Server] {
						t.Fatalf("%d is opened twice", a.Server)
					}
					open[a.Server] = true
				case Close:
					if !open[a.Server] {
						t.Fatalf("%d is closed and was not open", a.Server)
					}
					open[a.Server] = false
				case Replace:
					if !open[a.Server] || a.Server >= active {
						t.Fatalf("%d is replaced, active is %d", a.Server, active)
					}
				case Switch:
					if active == a.Server {
						t.Fatalf("a switch from %d to itself", active)
					}
					active = a.Server
				case Fail:
					if m.anyUp() {
						t.Fatalf("all have failed, and one is up")
					}
				}
			}
			for i := range names {
				if open[i] != (m.servers[i].state != closed) || i > 0 && open[i] && !open[i-1] {
					t.Fatalf("open are %v", open)
				}
			}
			if active != m.Active() || active >= 0 && !open[active] {
				t.Fatalf("active is %d, open are %v", m.Active(), open)
			}
			if _, down := m.Unreachable(); down && m.anyUp() {
				t.Fatal("unreachable, and one is up")
			}
			if next := m.Next(now); !next.IsZero() && !next.After(now) {
				t.Fatal("wants to be called at once")
			}
			// One tick more changes nothing.
			m.Tick(now)
			if more := m.Actions(); len(more) > 0 {
				t.Fatalf("a second look brings %v", more)
			}
		}
		pass := func(span time.Duration) {
			end := now.Add(span)
			for next := m.Next(now); !next.IsZero() && !next.After(end); next = m.Next(now) {
				now = next
				m.Tick(now)
				take()
			}
			now = end
			m.Tick(now)
			take()
		}
		m.Missing(now, true)
		take()
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			before := active
			wasUp := before >= 0 && m.Up(before)
			i := rapid.IntRange(0, len(names)-1).Draw(t, "server")
			what := rapid.SampledFrom([]string{"opened", "responded", "lost", "failed", "missing", "held", "time"}).Draw(t, "what")
			switch {
			case what == "time":
				pass(time.Duration(rapid.IntRange(1, 40_000).Draw(t, "ms")) * time.Millisecond)
			case what == "missing", what == "held":
				m.Missing(now, what == "missing")
			case !open[i]:
			case what == "opened":
				m.Opened(now, i)
			case what == "responded":
				m.Responded(now, i)
			case what == "lost":
				m.Lost(now, i, "ended")
			default:
				m.Failed(now, i, "refused")
			}
			take()
			if what != "time" && active > before && before >= 0 && wasUp && m.servers[before].state == up {
				t.Fatalf("went down from %d, which is up, to %d", before, active)
			}
		}
		for i := range names {
			if open[i] {
				m.Responded(now, i)
				take()
			}
		}
		pass(o.Hysteresis)
		if active != 0 {
			t.Fatalf("all are up, and %d is active", active)
		}
		for i := range names {
			if open[i] != (i == 0) {
				t.Fatalf("all are up, and %v are open", open)
			}
		}
	})
}
