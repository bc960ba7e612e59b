package relay

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

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

// TestOtherMembersGiveNamesOfOtherAuthorities: a control plane of two authorities may give names of one with those of the
// other, and a member passes them on.
func TestOtherMembersGiveNamesOfOtherAuthorities(t *testing.T) {
	f := startFleetTest(t)
	const foreign = "xdstp://b/envoy.config.cluster.v3.Cluster/x"
	f.plane = startLabelledPlane(t, "first", "m1", foreign)
	second := fmt.Sprintf(`}]}, {name: b, servers: [{address: "%s", protocol: delta}]}]`, f.plane.address)
	for i := range f.relays {
		config := f.config(i, "a", f.fleetOf(i, "", f.peers[0], f.peers[1]))
		f.run(i, strings.Replace(config, "}]}]", second, 1))
	}
	f.awaitShared()
	for i := range f.relays {
		conn := connectTo(t, f.addresses[i])
		for zone := range fleetZones {
			c := hold(t, conn, false, &corev3.Node{Id: fmt.Sprintf("%d-%d", i, zone), Cluster: fmt.Sprint(zone)})
			c.awaitHas(t, "at the start", map[string]string{"m1": "first", foreign: "first"})
		}
	}
}
