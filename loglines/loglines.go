// Package loglines bounds what is logged of one thing that can happen again and again:
// so many lines at once, then one from time to time, which says how many were left out.
package loglines

import (
	"log/slog"
	"time"

	"golang.org/x/time/rate"
)

// How many lines there are at once, and how often one after that.
const (
	AtOnce = 10
	Every  = time.Minute
)

// Lines says which of the lines about one thing are logged. The zero value is ready. It is
// not safe for concurrent use.
type Lines struct {
	limiter *rate.Limiter // nil before the first
	skipped int
}

// Next returns the logger for the next line, with how many were left out before it; false
// if it is left out itself.
func (l *Lines) Next(log *slog.Logger) (_ *slog.Logger, ok bool) {
	if l.limiter == nil {
		l.limiter = rate.NewLimiter(rate.Every(Every), AtOnce)
	}
	if !l.limiter.Allow() {
		l.skipped++
		return log, false
	}
	if l.skipped > 0 {
		log = log.With("skipped", l.skipped)
		l.skipped = 0
	}
	return log, true
}
