package main

import (
	"bytes"
	"context"
	"log/slog"
	"runtime/pprof"
	"sync/atomic"
	"time"
)

// endWithin is how long the orderly end of the relay may take. What waits for it, such as
// an orchestrator, kills after a while, and less softly.
const endWithin = 10 * time.Second

// ending bounds how long the relay takes to end, whatever a client, a control plane or a
// disk keeps it waiting for.
type ending struct {
	log *slog.Logger
	// doing is what the relay does, for people; failure is why it ends, if it was not
	// asked to.
	doing   atomic.Value // of string
	failure atomic.Pointer[error]
	failed  chan struct{} // closed with failure
}

func newEnding(log *slog.Logger) *ending {
	e := &ending{log: log, failed: make(chan struct{})}
	e.does("starting")
	return e
}

// does notes what the relay does from now on.
func (e *ending) does(what string) { e.doing.Store(what) }

// fails notes why the relay ends by itself. It is called at most once.
func (e *ending) fails(err error) {
	e.failure.Store(&err)
	close(e.failed)
}

// bound returns what run returns. When run is to end, because ctx has or the relay has
// failed, and does not in time, bound does without it.
func (e *ending) bound(ctx context.Context, run func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	case <-e.failed:
	}
	patience := time.NewTimer(endWithin)
	defer patience.Stop()
	select {
	case err := <-ended:
		return err
	case <-patience.C:
	}
	e.log.Warn("ending without waiting any longer", "after", endWithin, "still", e.doing.Load())
	if e.log.Enabled(context.Background(), slog.LevelDebug) {
		e.log.Debug("what was going on", "goroutines", goroutines())
	}
	if err := e.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// goroutines says what goroutines there are, those that are the same as one.
func goroutines() string {
	const most = 64 << 10
	var b bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1) // to memory
	b.Truncate(min(b.Len(), most))
	return b.String()
}
