package loglines

import (
	"fmt"
	"log/slog"
	"strings"
)

// MaxText is the maximal length, in bytes, of a text from a client or control plane that the
// relay keeps or shows.
const MaxText = 2 << 10

// Clip shortens a text from a client or control plane, such as a node id, to [MaxText].
func Clip(s string) string { return ClipTo(s, MaxText) }

// ClipTo is like [Clip], with another length in bytes.
func ClipTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// ClipAttr is a slog.HandlerOptions.ReplaceAttr. It shortens every text in a log line,
// whichever package logs it.
func ClipAttr(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		if s := a.Value.String(); len(s) > MaxText {
			a.Value = slog.StringValue(Clip(s))
		}
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case error:
			a.Value = slog.StringValue(Clip(v.Error()))
		default:
			if s := fmt.Sprintf("%+v", v); len(s) > MaxText {
				a.Value = slog.StringValue(Clip(s))
			}
		}
	default: // numbers and times
	}
	return a
}
