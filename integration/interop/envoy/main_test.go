package envoy

import (
	"os"
	"testing"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

func TestMain(m *testing.M) { os.Exit(peers.Main(m, "../../..", sections)) }
