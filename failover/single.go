package failover

import (
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Single reports to a [Reachability] whether the only server of a scope is reachable.
// There is no server to choose.
type Single struct {
	scope        cache.Scope
	reachability *Reachability

	mu      sync.Mutex
	machine *Machine
	timer   *time.Timer
	closed  bool
}

// NewSingle begins to observe a server. Close stops it.
func NewSingle(scope cache.Scope, name string, o Options, reach *Reachability) *Single {
	l := &Single{scope: scope, reachability: reach, machine: NewMachine([]string{name}, o)}
	l.mu.Lock()
	l.timer = time.AfterFunc(o.Timeout, func() { l.step(l.machine.Tick) })
	l.mu.Unlock()
	l.step(func(now time.Time) { l.machine.Missing(now, true) })
	return l
}

// Event reports a change of the connection.
func (l *Single) Event(e Event) {
	l.step(func(now time.Time) { l.machine.event(now, 0, e) })
}

func (l *Single) step(f func(now time.Time)) {
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
	l.reachability.set(l.scope, since, down)
}

// Close stops observing; the scope counts as reachable.
func (l *Single) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.timer.Stop()
		l.reachability.set(l.scope, time.Time{}, false)
	}
}
