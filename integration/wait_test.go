package integration

// Waiting for events.

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// patience is how long a test waits for an event that must happen. It is this long for slow and busy
// machines; a test that passes never waits that long.
const patience = time.Minute

// watched is a value that several goroutines change, and for whose changes a test can wait.
type watched[T any] struct {
	mu      sync.Mutex
	value   T
	changed chan struct{} // closed at the next change; nil while no goroutine waits
}

// update changes the value with f.
func (w *watched[T]) update(f func(*T)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.value)
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// read calls f with the value. f must not keep a reference to it.
func (w *watched[T]) read(f func(*T)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.value)
}

// wait waits until ok returns true. It calls ok at every change.
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

// await waits until ok returns true, and fails the test if that takes longer than patience.
func (w *watched[T]) await(t testing.TB, what string, ok func(*T) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := w.wait(ctx, ok); err != nil {
		w.read(func(value *T) { t.Fatalf("waited in vain until %s; the state is %s", what, describe(value)) })
	}
}

// describe formats a value for a failed test.
func describe(value any) string {
	if s, ok := value.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("%+v", value)
}

// eventually calls try again and again until it returns no error. It is for events without a notification,
// such as RPCs that reach another backend.
func eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	within(t, patience, what, try)
}

// within is eventually with another patience.
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
