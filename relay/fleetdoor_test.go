package relay

import (
	"log/slog"
	"testing"

	"github.com/xds-relay/xds-relay/internal/process"
)

// TestMembersServeEachOtherInAContainerWithAMemoryLimit: the peers' door refuses streams when memory is short, not
// whenever there is a limit.
func TestMembersServeEachOtherInAContainerWithAMemoryLimit(t *testing.T) {
	f := startFleetTest(t)
	memory := process.NewMemory(func() process.Usage { return process.Usage{Used: 100 << 20, Limit: 8 << 30} })
	for i := range f.relays {
		config := f.config(i, "a", f.fleetOf(i, "", f.peers[0], f.peers[1]))
		f.relays[i], _ = runRelayWith(t, config, Options{Log: slog.New(slog.DiscardHandler), Memory: memory})
	}
	f.awaitShared()
	f.connect()
	if n := f.plane.opened(); n != fleetZones {
		t.Errorf("%d streams were opened, want one for each partition: %d", n, fleetZones)
	}
}
