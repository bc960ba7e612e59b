package envoy

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Scenarios mostly wait.
	if err := flag.Set("test.parallel", "12"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(peers.Main(m, "../../..", sections))
}
