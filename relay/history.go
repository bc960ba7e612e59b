package relay

import (
	"log/slog"
	"math"
	"runtime/debug"

	"github.com/xds-relay/xds-relay/internal/history"
)

// newHistory returns a history that takes a small part of the memory that the process may have.
func newHistory(log *slog.Logger) *history.History {
	const part = 64
	bytes := int64(history.MostBytes)
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		bytes = min(bytes, limit/part)
	}
	return history.New(int(bytes), log)
}
