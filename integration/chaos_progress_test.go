package integration

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// showProgress prints the progress of chaos until ctx ends. On a terminal it updates one line; elsewhere it
// prints a line each minute.
func showProgress(ctx context.Context, to io.Writer, terminal bool, begun time.Time, whole time.Duration, state func() string) {
	every := time.Minute
	if terminal {
		every = time.Second
		defer fmt.Fprint(to, "\r\x1b[K")
	}
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticks.C:
			passed := now.Sub(begun)
			line := fmt.Sprintf("chaos: %d %%, %v of %v, %s", 100*passed/whole, passed.Round(time.Second), whole, state())
			if terminal {
				fmt.Fprint(to, "\r\x1b[K", line)
			} else {
				fmt.Fprintln(to, line)
			}
		}
	}
}

// TestChaosShowsHowFarItIs checks the progress output of a long run.
func TestChaosShowsHowFarItIs(t *testing.T) {
	for _, of := range []struct {
		terminal bool
		want     string
	}{
		{false, "chaos: 33 %, 1m0s of 3m0s, 2 relays\nchaos: 66 %, 2m0s of 3m0s, 2 relays\n"},
		{true, "\r\x1b[Kchaos: 66 %, 2m0s of 3m0s, 2 relays\r\x1b[Kchaos: 67 %, 2m1s of 3m0s, 2 relays\r\x1b[K"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), 121500*time.Millisecond)
			defer stop()
			var shown strings.Builder
			showProgress(ctx, &shown, of.terminal, time.Now(), 3*time.Minute, func() string { return "2 relays" })
			if !strings.HasSuffix(shown.String(), of.want) {
				t.Errorf("the output is %q, want it to end with %q", shown.String(), of.want)
			}
		})
	}
}

// isTerminal reports whether output goes to a terminal, on which a line can be redrawn.
func isTerminal(file *os.File) bool {
	i, err := file.Stat()
	return err == nil && i.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
