package envoy

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

var update = flag.Bool("update", false, "write the results to docs/clients.md")

// binary is the path of the relay's binary.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	// Scenarios mostly wait.
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "xds-relay-envoy-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "xds-relay")
	if err := peers.RunIn("../../..", "go", "build", "-race", "-o", binary, "./cmd/xds-relay"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status := m.Run()
	fmt.Fprint(os.Stdout, &results)
	if partial := flag.Lookup("test.run").Value.String() != ""; status != 0 || partial || len(results.rows) == 0 {
		return status
	}
	if err := results.document(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
