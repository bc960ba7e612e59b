package relay

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Reloads that change nothing are few lines in the log, however many there are. A reload that changes something is always
// a line.
func TestReloadsThatChangeNothingAreFewLines(t *testing.T) {
	const reloads = 8000
	var out bytes.Buffer
	r := &Relay{log: slog.New(slog.NewTextHandler(&out, nil))}
	for range reloads {
		if log, ok := r.lineOfReload(&r.reloads.same, true); ok {
			log.Info("the same")
		}
	}
	if n := strings.Count(out.String(), "the same"); n < loglines.SharedAtOnce || n > 2*loglines.SharedAtOnce {
		t.Errorf("%d reloads are %d lines", reloads, n)
	}
	if log, ok := r.lineOfReload(&r.reloads.same, false); !ok || log != r.log {
		t.Error("a reload that changes something is no line")
	}
}
