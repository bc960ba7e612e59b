package loglines

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"
)

func TestClip(t *testing.T) {
	for _, s := range []string{"", "short", strings.Repeat("x", MaxText)} {
		if got := Clip(s); got != s {
			t.Errorf("%d bytes are clipped to %d", len(s), len(got))
		}
	}
	for _, s := range []string{strings.Repeat("x", MaxText+1), strings.Repeat("é", MaxText), "x" + strings.Repeat("é", MaxText)} {
		got := Clip(s)
		if len(got) > MaxText+3 || !utf8.ValidString(got) || !strings.HasPrefix(s, strings.TrimSuffix(got, "...")) || got == s {
			t.Errorf("%d bytes are clipped to %q", len(s), got)
		}
	}
}

// A log line is short, whatever is logged, and however.
func TestEveryTextInALineIsClipped(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		o := &slog.HandlerOptions{ReplaceAttr: ClipAttr}
		h := slog.Handler(slog.NewTextHandler(&out, o))
		if format == "json" {
			h = slog.NewJSONHandler(&out, o)
		}
		log := slog.New(h)
		for what, line := range map[string]func(){
			"an attribute":     func() { log.Info("m", "client", long) },
			"one before":       func() { log.With("client", long).Info("m") },
			"one in a group":   func() { log.WithGroup("g").Info("m", slog.Group("h", "client", long)) },
			"an error":         func() { log.Info("m", "reason", errors.New(long)) },
			"a list":           func() { log.Info("m", "names", []string{long, long}) },
			"something else":   func() { log.Info("m", "any", map[string]int{long: 1}) },
			"the message":      func() { slog.NewLogLogger(h, slog.LevelInfo).Print(long) },
			"what is no error": func() { log.Info("m", "bytes", []byte(long)) },
		} {
			out.Reset()
			line()
			if out.Len() > MaxText+200 || out.Len() == 0 {
				t.Errorf("%s in %s is a line of %d bytes", what, format, out.Len())
			}
		}
		out.Reset()
		log.Info("m", "n", 1, "names", []string{"a"}, "ok", true)
		if got := out.String(); !strings.Contains(got, "n=1 names=[a] ok=true") && !strings.Contains(got, `"n":1,"names":["a"],"ok":true`) {
			t.Errorf("short values are changed: %s", got)
		}
	}
}

// The lines that a library logs about clients are also bounded.
func TestLinesOfALibraryAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.NewLogLogger(Bounded(slog.NewTextHandler(&out, nil)), slog.LevelWarn)
		for range 10 * SharedAtOnce {
			log.Print("handshake error")
		}
		if n := strings.Count(out.String(), "\n"); n != SharedAtOnce {
			t.Errorf("%d lines, want %d", n, SharedAtOnce)
		}
	})
}
