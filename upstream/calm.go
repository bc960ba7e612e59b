package upstream

import (
	"time"

	"github.com/xds-relay/xds-relay/upstream/session"
)

// Some control planes answer a NACK at once with the resources that were rejected, and so keep both sides
// busy. In such a loop, the relay delays each repeated NACK more than the one before.
//
// The first NACK is sent at once. So is a NACK of another version or for another reason, because
// the control plane may wait for it before it sends the next response. (A delta control plane need not
// send versions.) A control plane that sends the next response while the NACK is delayed does not wait for
// the NACK.

const (
	calmFrom = 10 * time.Millisecond
	calmMost = time.Second
)

// calm says how long a repeated NACK of a type waits.
type calm struct {
	// reasons are those of the NACK of the last response, which had this version; empty after an ACK.
	reasons string
	version string
	wait    time.Duration
	until   time.Time
}

// answered records a response and its NACK; nack is empty for an ACK.
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
