package loglines

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLinesAreFewAndSayHowManyAreLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}}))
		var lines Lines
		many := func(n int) string {
			out.Reset()
			for range n {
				if log, ok := lines.Next(log); ok {
					log.Info("x")
				}
			}
			return out.String()
		}
		if got, want := many(100), strings.Repeat("msg=x\n", AtOnce); got != want {
			t.Errorf("at once: got\n%s, want\n%s", got, want)
		}
		time.Sleep(Every)
		if got, want := many(100), "msg=x skipped=90\n"; got != want {
			t.Errorf("a while later: got\n%s, want\n%s", got, want)
		}
		time.Sleep(AtOnce * Every)
		if got, want := many(2), "msg=x skipped=99\nmsg=x\n"; got != want {
			t.Errorf("after a long while: got\n%s, want\n%s", got, want)
		}
	})
}
