package integration

// Waiting for what is to happen.

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen. A test that passes
// never waits that long: it is for machines that are slow and busy.
const patience = time.Minute

// watched is a value that several goroutines change and whose changes can be
// waited for.
type watched[T any] struct {
	mu      sync.Mutex
	value   T
	changed chan struct{} // closed at the next change; nil while nobody waits
}

// update lets f change the value.
func (w *watched[T]) update(f func(*T)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.value)
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// read lets f look at the value, and at nothing of it afterwards.
func (w *watched[T]) read(f func(*T)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.value)
}

// wait waits until ok, which is called at every change.
func (w *watched[T]) wait(ctx context.Context, ok func(*T) bool) error {
	for {
		w.mu.Lock()
		done := ok(&w.value)
		if w.changed == nil {
			w.changed = make(chan struct{})
		}
		changed := w.changed
		w.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// await waits until ok and ends the test if that does not come.
func (w *watched[T]) await(t testing.TB, what string, ok func(*T) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := w.wait(ctx, ok); err != nil {
		w.read(func(value *T) { t.Fatalf("waited in vain until %s; there is %s", what, describe(value)) })
	}
}

// describe prints a value for a failed test.
func describe(value any) string {
	if s, ok := value.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("%+v", value)
}

// eventually polls until try gives no error: for events without a notification, such as where RPCs go.
func eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	within(t, patience, what, try)
}

// within is eventually for what may take longer.
func within(t testing.TB, patience time.Duration, what string, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("waited in vain until %s: %v", what, err)
		}
	}
}
