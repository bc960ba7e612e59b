package loglines

import (
	"fmt"
	"log/slog"
	"strings"
)

// MaxText is how much is kept and shown of a text that somebody else has chosen, in
// bytes.
const MaxText = 2 << 10

// Clip bounds a text that somebody else has chosen, such as a client's node id.
func Clip(s string) string { return ClipTo(s, MaxText) }

// ClipTo is Clip with a bound of its own, in bytes.
func ClipTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// ClipAttr is for slog.HandlerOptions.ReplaceAttr: it bounds every text in a line of log,
// whoever logs it.
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
