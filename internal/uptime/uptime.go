// Package uptime measures time since the process started.
package uptime

import "time"

var start = time.Now()

// Duration returns how long the process has been running.
func Duration() time.Duration { return time.Since(start) }

// Millis is Duration in milliseconds, modulo 2^32: it is small in memory. Of two such times that are less than 24 days
// apart, After tells which is later.
func Millis() uint32 { return uint32(Duration().Milliseconds()) } //nolint:gosec // the overflow is intended

// After reports whether a is later than b.
func After(a, b uint32) bool { return int32(a-b) > 0 } //nolint:gosec // the overflow is intended
