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
//
// Others answer each NACK with another version that is rejected, too. So the NACKs of a type have a pace, whatever they
// are about and whatever is acknowledged in between.

const (
	calmFrom = 10 * time.Millisecond
	calmMost = time.Second
	// nackEvery is the pace of different NACKs of a type, beyond the first nackBurst.
	nackEvery = 100 * time.Millisecond
	nackBurst = 20
)

// calm says how long a repeated NACK of a type waits.
type calm struct {
	// reasons are those of the NACK of the last response, which had this version; empty after an ACK.
	reasons string
	version string
	wait    time.Duration
	until   time.Time
	// paced is when the NACKs so far would be over at their pace.
	paced time.Time
}

// answered records a response and its NACK; nack is empty for an ACK.
func (c *calm) answered(now time.Time, version, nack string) {
	reasons := session.Reasons(nack)
	switch {
	case nack == "":
		*c = calm{paced: c.paced}
		return
	case reasons != c.reasons || version != c.version:
		*c = calm{reasons: reasons, version: version, paced: c.paced}
	case now.Before(c.until):
		c.until = time.Time{}
	default:
		c.wait = min(max(2*c.wait, calmFrom), calmMost)
		c.until = now.Add(c.wait)
	}
	const burst = nackBurst * nackEvery
	if c.paced.Before(now) {
		c.paced = now
	}
	if c.paced = c.paced.Add(nackEvery); c.paced.After(now.Add(burst + calmMost)) {
		c.paced = now.Add(burst + calmMost)
	}
	if at := c.paced.Add(-burst); at.After(c.until) && at.After(now) {
		c.until = at
	}
}
