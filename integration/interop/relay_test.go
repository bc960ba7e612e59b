package interop

// The programs that run until the test ends: the relay, and others.

import (
	"os"
	"os/exec"
	"testing"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// relay is a running relay.
type relay struct {
	*peers.Relay
	address string // for clients
}

// startRelay starts the relay in front of a control plane, and waits until it serves. The relay finds out which form
// the control plane speaks. So the configuration is the same for all control planes and clients.
func startRelay(t testing.TB, controlPlane string) *relay {
	t.Helper()
	r := peers.StartRelay(t, peers.ConfigFor(controlPlane, "auto"))
	return &relay{r, r.Address}
}

// start starts a program. If the test fails, it logs what the program has printed.
func start(t testing.TB, name string, cmd *exec.Cmd) *peers.Process {
	t.Helper()
	var logs peers.Output
	logs.Show(t, name)
	return peers.Start(t, name, cmd, &logs, os.Kill)
}

// required skips the test if a program cannot run here.
var required = peers.Require
