package process

import (
	"bytes"
	"context"
	"log/slog"
	"runtime/pprof"
	"sync/atomic"
	"time"
)

// shutdownTimeout bounds the shutdown of the relay. Orchestrators kill a process that takes
// longer than their own timeout.
const shutdownTimeout = 10 * time.Second

// Shutdown bounds how long the relay takes to end, even while a client, a control plane or
// a disk hangs. Its methods may be called concurrently.
type Shutdown struct {
	log *slog.Logger
	// current is the text for the log that describes what the relay is doing.
	current atomic.Value // of string
	// drained is when the drain ends, in nanoseconds since 1970; 0 before the drain starts.
	drained atomic.Int64
}

// NewShutdown returns a Shutdown that logs what a shutdown that timed out was waiting for.
func NewShutdown(log *slog.Logger) *Shutdown {
	s := &Shutdown{log: log}
	s.Stage("starting")
	return s
}

// Stage records what the relay is doing from now on, as text for the log.
func (s *Shutdown) Stage(what string) { s.current.Store(what) }

// Drain announces that the relay drains its listeners for at most the given time, which Bound adds to its own timeout. 0
// announces that they are drained.
func (s *Shutdown) Drain(within time.Duration) { s.drained.Store(time.Now().Add(within).UnixNano()) }

// Bound calls run and returns its error. Once ctx has ended, Bound waits for run: at most 10 seconds, or 10
// seconds after the relay has drained. Then it logs what the relay was doing and returns nil.
func (s *Shutdown) Bound(ctx context.Context, run func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	timeout := time.NewTimer(shutdownTimeout)
	defer timeout.Stop()
	for begin := time.Now(); ; {
		select {
		case err := <-ended:
			return err
		case <-timeout.C:
		}
		until := begin
		if drained := s.drained.Load(); drained != 0 {
			until = time.Unix(0, drained)
		}
		left := shutdownTimeout - time.Since(until)
		if left <= 0 {
			break
		}
		timeout.Reset(left)
	}
	s.log.Warn("shutdown timed out", "after", shutdownTimeout, "still", s.current.Load())
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.log.Debug("goroutines at the shutdown timeout", "goroutines", goroutines())
	}
	return nil
}

// goroutines returns the stacks of all goroutines, equal ones once, up to 64 KiB.
func goroutines() string {
	const most = 64 << 10
	var b bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1) // a buffer does not fail
	b.Truncate(min(b.Len(), most))
	return b.String()
}
