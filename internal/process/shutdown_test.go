package process

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The process ends in time, whatever goes on.
func TestTheEndIsBounded(t *testing.T) {
	failure := errors.New("a listener has failed")
	for _, test := range []struct {
		name string
		run  func(ctx context.Context, e *Shutdown, stuck <-chan struct{}) error
		took time.Duration
		err  error
		says string
	}{
		{"in order", func(ctx context.Context, _ *Shutdown, _ <-chan struct{}) error {
			<-ctx.Done()
			<-time.After(time.Second)
			return nil
		}, time.Second, nil, ""},
		{"with an error", func(ctx context.Context, _ *Shutdown, _ <-chan struct{}) error {
			<-ctx.Done()
			return failure
		}, 0, failure, ""},
		{"while something hangs", func(ctx context.Context, e *Shutdown, stuck <-chan struct{}) error {
			<-ctx.Done()
			e.Stage("watching paint dry")
			<-stuck
			return nil
		}, shutdownTimeout, nil, `still="watching paint dry"`},
		{"before it has begun", func(_ context.Context, _ *Shutdown, stuck <-chan struct{}) error {
			<-stuck
			return nil
		}, shutdownTimeout, nil, "still=starting"},
		{"while it drains", func(ctx context.Context, e *Shutdown, _ <-chan struct{}) error {
			<-ctx.Done()
			e.Drain(time.Minute)
			<-time.After(time.Minute)
			e.Drain(0)
			<-time.After(shutdownTimeout - time.Second)
			return nil
		}, time.Minute + shutdownTimeout - time.Second, nil, ""},
		{"while something hangs, after it has drained sooner", func(ctx context.Context, e *Shutdown, stuck <-chan struct{}) error {
			<-ctx.Done()
			e.Drain(time.Hour)
			<-time.After(time.Second)
			e.Drain(0)
			<-stuck
			return nil
		}, time.Second + shutdownTimeout, nil, "still=starting"},
		{"while something hangs that drains", func(ctx context.Context, e *Shutdown, stuck <-chan struct{}) error {
			<-ctx.Done()
			e.Drain(time.Minute)
			<-stuck
			return nil
		}, time.Minute + shutdownTimeout, nil, "still=starting"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				e := NewShutdown(slog.New(slog.NewTextHandler(&out, nil)))
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				stuck := make(chan struct{})
				defer close(stuck)
				begin := time.Now()
				err := e.Bound(ctx, func() error { return test.run(ctx, e, stuck) })
				if took := time.Since(begin); took != test.took {
					t.Errorf("it took %v, want %v", took, test.took)
				}
				if !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
					t.Errorf("it returns %v, want %v", err, test.err)
				}
				if got := out.String(); test.says == "" && got != "" || !strings.Contains(got, test.says) {
					t.Errorf("it says %q, want %q", got, test.says)
				}
			})
		})
	}
}
