package relay

import (
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/upstream"
)

// A reload may give thousands of scopes new sources, whose streams all go to one control plane. They are opened a
// hundred at a time: a scope has its turn once one before it has had an answer, or has waited for a while. So a control
// plane that is fast has all of them soon, and one that has much to do for each stream is not asked for everything
// at once. Clients keep what they have meanwhile.
//
// Streams that a control plane has ended, as at its restart, are spread by the jitter of their backoff (see upstream).

const (
	// renewedAtOnce is how many scopes wait at once for the first answer of one control plane.
	renewedAtOnce = 100
	// answersWithin is how long a scope waits for that before the next one has its turn: a control plane need not
	// answer. So 5,000 scopes have their turn within renewAfter.
	answersWithin = 250 * time.Millisecond
)

// turns are the scopes that wait for their turn, by the control plane of their new source.
type turns struct {
	mu     sync.Mutex
	planes map[any]*planeTurns
}

// planeTurns are those of one control plane.
type planeTurns struct {
	busy  chan struct{} // has one in it for each scope that has its turn
	users int           // that have one, or wait; guarded by turns.mu
}

// take waits for a turn, which lasts until end is called. It returns nil if stop was closed earlier. Without a control
// plane nobody waits.
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

// answering is a source whose control plane answers.
type answering interface {
	// Answered is closed once the control plane has answered, or could not be reached.
	Answered() <-chan struct{}
}

// firstAnswer says whether a control plane has answered for the first time, or could not be reached.
type firstAnswer struct {
	once sync.Once
	came chan struct{}
}

func newFirstAnswer() *firstAnswer { return &firstAnswer{came: make(chan struct{})} }

// before returns what notes the answer, and then calls watch.
func (a *firstAnswer) before(watch func(upstream.Event)) func(upstream.Event) {
	return func(e upstream.Event) {
		if e.Kind == upstream.Responded || e.Kind == upstream.Failed {
			a.once.Do(func() { close(a.came) })
		}
		watch(e)
	}
}

// awaitAnswer waits for the first answer to a source, for answersWithin at most, or until stop is closed.
func awaitAnswer(of source, stop <-chan struct{}) {
	if gated, ok := of.(*gatedSource); ok {
		of = gated.source
	}
	a, ok := of.(answering)
	if !ok {
		return
	}
	timer := time.NewTimer(answersWithin)
	defer timer.Stop()
	select {
	case <-a.Answered():
	case <-timer.C:
	case <-stop:
	}
}
