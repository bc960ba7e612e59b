package taster

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

func tallyOf(mode Mode) (*Tally, *bytes.Buffer) {
	var logs bytes.Buffer
	return NewTally(mode, slog.New(slog.NewTextHandler(&logs, nil))), &logs
}

var bad = &Verdict{Envoy: "Cluster.X: it is bad", GRPC: "in a[1], it requires that x (gRFC A1)"}

func TestTallyCountsByTypeAndFamily(t *testing.T) {
	tally, _ := tallyOf(Warn)
	tally.Failed("p", xdstype.ClusterV3, "a", bad, 0)
	tally.Failed("p", xdstype.ClusterV3, "b", &Verdict{Unreadable: "is none"}, 0)
	tally.Failed("p", xdstype.Prefix+"acme.Widget", "c", &Verdict{Envoy: "y"}, 0)
	counts := tally.Counts()
	for c, want := range map[Count]uint64{
		{"envoy.config.cluster.v3.Cluster", "envoy", false}: 1, {"envoy.config.cluster.v3.Cluster", "grpc", false}: 1,
		{"envoy.config.cluster.v3.Cluster", "all", true}: 1, {"other", "envoy", false}: 1,
		{"envoy.config.listener.v3.Listener", "grpc", false}: 0, {"envoy.config.route.v3.RouteConfiguration", "all", true}: 0,
	} {
		if got, ok := counts[c]; !ok || got != want {
			t.Errorf("%+v: got %d (%t), want %d", c, got, ok, want)
		}
	}
	if refused, warned := tally.Totals(); refused != 1 || warned != 2 {
		t.Errorf("%d refused and %d warned, want 1 and 2", refused, warned)
	}
}

func TestTallyShowsTheLastFailures(t *testing.T) {
	tally, _ := tallyOf(Refuse)
	for i := range mostFailures + 50 {
		tally.Failed("p", xdstype.ClusterV3, fmt.Sprint("c", i), bad, 0)
	}
	tally.Passed("p", xdstype.ClusterV3, "c149")
	tally.Passed("p", xdstype.ClusterV3, "another")
	tally.Passed("another", xdstype.ClusterV3, "c148")
	tally.Failed("p", xdstype.ClusterV3, "c60", bad, 0)
	all := tally.Failures()
	if len(all) != mostFailures-1 || all[0].Name != "c60" || all[1].Name != "c148" || all[len(all)-1].Name != "c50" {
		t.Errorf("%d failures, from %+v to %+v", len(all), all[0], all[len(all)-1])
	}
	if f := all[0]; !f.Refused || f.Reason != bad.Reason() || f.Partition != "p" || f.At.IsZero() {
		t.Errorf("got %+v", f)
	}
}

// All failures of one large response are counted, and the last ones shown. New kinds among the others are logged.
func TestTallyCountsWhatItDoesNotShow(t *testing.T) {
	tally, logs := tallyOf(Warn)
	const all = 5 * mostFailures
	another := &Verdict{GRPC: "it requires that y (gRFC A2)"}
	for i := range all {
		v := bad
		if i == all/2 {
			v = another
		}
		tally.Failed("p", xdstype.ClusterV3, fmt.Sprint("c", i), v, all-1-i)
	}
	if _, warned := tally.Totals(); warned != all {
		t.Errorf("%d warned, want %d", warned, all)
	}
	if n := tally.Counts()[Count{"envoy.config.cluster.v3.Cluster", "grpc", false}]; n != all {
		t.Errorf("%d are counted, want %d", n, all)
	}
	for i, f := range tally.Failures() {
		if want := fmt.Sprint("c", all-1-i); f.Name != want {
			t.Fatalf("failure %d is %s, want %s", i, f.Name, want)
		}
	}
	if n := len(tally.Failures()); n != mostFailures {
		t.Errorf("%d failures are shown, want %d", n, mostFailures)
	}
	for _, reason := range []string{bad.GRPC, another.GRPC} {
		if n := strings.Count(logs.String(), reason); n != 1 {
			t.Errorf("%d lines of %q, want 1", n, reason)
		}
	}
}

// There is one log line for each kind of failure, not for each resource, and few lines for an unbounded number of
// kinds.
func TestTallyLogsFewLines(t *testing.T) {
	tally, logs := tallyOf(Warn)
	long := strings.Repeat("n", 10<<10)
	for i := range 1000 {
		tally.Failed(long, xdstype.ClusterV3, fmt.Sprint("c", i, long), &Verdict{GRPC: fmt.Sprintf("in a[%d], it requires that x (gRFC A1)", i)}, 0)
	}
	if n := strings.Count(logs.String(), "\n"); n != 1 {
		t.Errorf("%d lines, want 1", n)
	}
	for i := range 1000 {
		tally.Failed("p", xdstype.ClusterV3, "c", &Verdict{Envoy: strings.Repeat("y", i)}, 0)
	}
	if n := strings.Count(logs.String(), "\n"); n != loglines.AtOnce {
		t.Errorf("%d lines, want %d", n, loglines.AtOnce)
	}
	for line := range strings.Lines(logs.String()) {
		if len(line) > 8<<10 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}

// Without a tally nothing is recorded, and the mode is the default.
func TestNoTally(t *testing.T) {
	var none *Tally
	none.Failed("", "", "", bad, 0)
	none.Passed("", "", "")
	if none.Mode() != Warn {
		t.Error("the mode is not the default")
	}
}
