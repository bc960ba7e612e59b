package client

// A query that runs until the caller ends it.

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Pauses between attempts to connect: the first, the longest, and the factor between them.
// Each varies by a fifth, so that many clients of a restarted server do not reconnect at the
// same time.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 15 * time.Second
	pauseGrowth  = 1.6
)

// Watch subscribes, and calls report for every event until ctx is done. Then it returns nil. If the
// stream is lost, it reconnects and resumes. It returns an error if the server can never answer. Calls
// of report do not overlap, and Watch reads nothing while one runs.
func Watch(ctx context.Context, server Server, q Query, report func(Event)) error {
	return watch(ctx, server, q, report, func(attempt int) time.Duration {
		pause := float64(firstPause)
		for range attempt {
			pause = min(pause*pauseGrowth, float64(longestPause))
		}
		return time.Duration(pause * (0.8 + 0.4*rand.Float64()))
	})
}

// watch is Watch with the pause before the nth attempt in a row.
func watch(ctx context.Context, server Server, q Query, report func(Event), pause func(attempt int) time.Duration) error {
	a := newQueryRun(server, q)
	failures := 0
	for {
		connected := false
		err := a.stream(ctx, func(events []Event) {
			if connected { // the first call is for the connection, all later ones are for responses
				failures = 0
			}
			connected = true
			for _, e := range events {
				report(e)
			}
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the stream broke because the caller ended it
		}
		if unimplemented := (*UnimplementedError)(nil); errors.As(err, &unimplemented) {
			return err
		}
		retry := pause(failures)
		failures++
		report(Event{Kind: Disconnected, Err: err, Retry: retry})
		timer := time.NewTimer(retry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}
