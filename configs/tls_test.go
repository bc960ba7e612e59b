package configs

import (
	"testing"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// The addresses of agents that pass are those that the client of the Workload API takes. (It takes
// unix://host/path too, which gRPC refuses later.)
func TestAddressesOfAgentsAreThoseOfTheirClient(t *testing.T) {
	for _, address := range []string{
		"unix:/run/spire/agent.sock", "unix:///run/spire/agent.sock", "tcp://127.0.0.1:8081", "tcp://[::1]:8081",
		"", "unix:", "unix://", "unix:agent.sock", "unix:/a?b", "unix:/a#b", "unix:///a b",
		"/run/spire/agent.sock", "tcp://127.0.0.1", "tcp://localhost:1", "tcp:127.0.0.1:1", "tcp://127.0.0.1:1/a",
		"tcp://user@127.0.0.1:1", "tcp://127.0.0.1:1?a", "tcp://127.0.0.1:1#a", "http://127.0.0.1:1", "127.0.0.1:1", "unix:/a\x00",
	} {
		err, theirs := CheckWorkloadAPI(address), workloadapi.ValidateAddress(address)
		if (err == nil) != (theirs == nil) {
			t.Errorf("%q: %v, but its client says %v", address, err, theirs)
		}
	}
}
