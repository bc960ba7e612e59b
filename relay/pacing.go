package relay

import (
	"sync"
	"time"
)

// A reload may give thousands of scopes new sources whose streams all go to one control plane. The relay opens them a
// hundred at a time: the next scope has its turn once an earlier one has received an answer, or has waited for a
// while. So a fast control plane gets all streams soon, and one with much work per stream does not get all requests
// at once. In the meantime clients keep what they have.
//
// After a control plane has ended its streams, for instance to restart, backoff with jitter spreads them (see
// upstream).

const (
	// renewedAtOnce is how many scopes may wait at once for the first answer of one control plane.
	renewedAtOnce = 100
	// answersWithin is how long a scope waits for its first answer before the next scope has its turn, because a
	// control plane need not answer. So 5,000 scopes have their turns within renewAfter.
	answersWithin = 250 * time.Millisecond
)

// turns are the scopes that have or await a turn, by the control plane of their new source.
type turns struct {
	mu     sync.Mutex
	planes map[any]*planeTurns
}

// planeTurns are the turns of one control plane.
type planeTurns struct {
	busy  chan struct{} // has one value for each scope that has its turn
	users int           // scopes that have a turn or wait for one; guarded by turns.mu
}

// take waits for a turn, which lasts until end is called. It returns nil if stop is closed earlier. If plane is nil,
// it does not wait.
func (t *turns) take(plane any, stop <-chan struct{}) (end func()) {
	if plane == nil {
		return func() {}
	}
	t.mu.Lock()
	if t.planes == nil {
		t.planes = map[any]*planeTurns{}
	}
	of := t.planes[plane]
	if of == nil {
		of = &planeTurns{busy: make(chan struct{}, renewedAtOnce)}
		t.planes[plane] = of
	}
	of.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if of.users--; of.users == 0 {
			delete(t.planes, plane)
		}
	}
	select {
	case of.busy <- struct{}{}:
		return func() { <-of.busy; leave() }
	case <-stop:
		leave()
		return nil
	}
}

// awaitAnswer waits for the first answer to a source, but at most for answersWithin or until stop is closed.
func awaitAnswer(of source, stop <-chan struct{}) {
	answered := of.Answered()
	if answered == nil {
		return
	}
	timer := time.NewTimer(answersWithin)
	defer timer.Stop()
	select {
	case <-answered:
	case <-timer.C:
	case <-stop:
	}
}
