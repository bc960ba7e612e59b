package upstream

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// t0 is some time.
var t0 = time.Unix(1_700_000_000, 0)
