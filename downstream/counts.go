package downstream

import (
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/identity"
)

// Departure is why the relay sends the client of a connection away.
type Departure uint8

const (
	// Drained means that the connection's listener drains.
	Drained Departure = iota
	// Aged means that the connection has reached its maximum age.
	Aged
	numDepartures
)

var departures = [numDepartures]struct {
	name string
	why  error // the status with which streams end
}{
	Drained: {"drain", status.Error(codes.Unavailable, "the relay drains this listener (connect again)")},
	Aged:    {"age", status.Error(codes.Unavailable, "the connection has reached its maximum age (connect again)")},
}

// String returns the departure's name in metrics.
func (d Departure) String() string { return departures[d].name }

// readTotals returns the totals, one for each K, by its name.
func readTotals[K interface {
	~uint8
	String() string
}](totals []atomic.Uint64) map[string]uint64 {
	read := make(map[string]uint64, len(totals))
	for i := range totals {
		read[K(i).String()] = totals[i].Load()
	}
	return read
}

// departureCounts are totals, one for each Departure.
type departureCounts [numDepartures]atomic.Uint64

func (c *departureCounts) read() map[string]uint64 { return readTotals[Departure](c[:]) }

// clientRefusals are totals, one for each reason.
type clientRefusals [identity.NumReasons]atomic.Uint64

func (c *clientRefusals) read() map[string]uint64 { return readTotals[identity.Reason](c[:]) }
