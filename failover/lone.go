package failover

import (
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Lone watches the only server of a scope, for a [Reach]: there is nothing to choose.
type Lone struct {
	scope cache.Scope
	reach *Reach

	mu      sync.Mutex
	machine *Machine
	timer   *time.Timer
	closed  bool
}

// NewLone begins to watch. Close ends it.
func NewLone(scope cache.Scope, name string, o Options, reach *Reach) *Lone {
	l := &Lone{scope: scope, reach: reach, machine: NewMachine([]string{name}, o)}
	l.mu.Lock()
	l.timer = time.AfterFunc(o.Timeout, func() { l.step(l.machine.Tick) })
	l.mu.Unlock()
	l.step(func(now time.Time) { l.machine.Missing(now, true) })
	return l
}

// Event notes what has become of the server.
func (l *Lone) Event(e Event) {
	l.step(func(now time.Time) { l.machine.event(now, 0, e) })
}

func (l *Lone) step(f func(now time.Time)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	now := time.Now()
	f(now)
	l.machine.Actions()
	if next := l.machine.Next(now); next.IsZero() {
		l.timer.Stop()
	} else {
		l.timer.Reset(next.Sub(now))
	}
	since, down := l.machine.Unreachable()
	l.reach.set(l.scope, since, down)
}

// Close ends the watch; the scope counts as reachable.
func (l *Lone) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.timer.Stop()
		l.reach.set(l.scope, time.Time{}, false)
	}
}
