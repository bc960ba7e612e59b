package upstream

import (
	"time"

	"github.com/xds-relay/xds-relay/upstream/session"
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
	reasons := session.Reasons(nack)
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
