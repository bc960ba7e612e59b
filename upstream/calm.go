package upstream

import (
	"slices"
	"strings"
	"time"
)

// Some control planes answer a NACK with what was rejected, at once, so that both sides do nothing else.
// The NACK that such a loop is made of is sent later and later.
//
// The first NACK of a response is sent at once. So is one of another version, or for another reason: the
// control plane may wait for it before it sends the next one. (A delta control plane need not send versions.)
// A control plane that sends more without having the NACK does not wait for it.

const (
	calmFrom = 10 * time.Millisecond
	calmMost = time.Second
)

// calm says how long a repeated NACK of a type waits.
type calm struct {
	// reasons are those of the NACK of the last response, of this version; empty if it was accepted.
	reasons string
	version string
	wait    time.Duration
	until   time.Time
}

// answered takes note of a response, and of the NACK of it if there is one.
func (c *calm) answered(now time.Time, version, nack string) {
	reasons := reasonsOf(nack)
	switch {
	case nack == "":
		*c = calm{}
	case reasons != c.reasons || version != c.version:
		*c = calm{reasons: reasons, version: version}
	case now.Before(c.until):
		c.until = time.Time{}
	default:
		c.wait = min(max(2*c.wait, calmFrom), calmMost)
		c.until = now.Add(c.wait)
	}
}

// reasonsOf returns the lines of a NACK without the places of the resources in their response, and in one order:
// a control plane may shuffle what it sends. If there was no room for all lines, those that are there are
// not always the same, and do not count.
func reasonsOf(nack string) string {
	lines := strings.Split(nack, "\n")
	if strings.HasPrefix(lines[len(lines)-1], omittedPrefix) {
		return omittedPrefix
	}
	for i, line := range lines {
		if in, rest, ok := strings.Cut(line, " "); ok && strings.HasPrefix(in, "resources[") {
			lines[i] = rest
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// calmed reports whether the answers of a type may be sent, or after what time to ask again. The caller
// holds mu.
func (s *Stream) calmed(f *feed, now time.Time) (ok bool, again time.Duration) {
	again = f.calm.until.Sub(now)
	return again <= 0 || !f.session.begun(), again
}
