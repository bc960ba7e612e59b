package process

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Most of the relay's heap is live, and by default Go lets the heap grow to twice that before
// it collects. A container may not have that much. So the runtime gets the container's
// limit, and collects in time.

// memoryRatio is the share of the container's limit that Go gets, unless AUTOMEMLIMIT sets
// it. The rest is for memory that the runtime does not count, and for peaks.
const memoryRatio = 0.9

// LimitMemory sets the runtime's memory limit from the container's and logs it. GOMEMLIMIT
// and AUTOMEMLIMIT=off prevent that.
func LimitMemory(log *slog.Logger, container memlimit.Provider) {
	from := "cgroup"
	if _, ok := os.LookupEnv("GOMEMLIMIT"); ok {
		from = "GOMEMLIMIT"
	} else if os.Getenv("AUTOMEMLIMIT") == "off" {
		from = "AUTOMEMLIMIT"
	}
	limit, err := memlimit.Set(memlimit.WithProvider(container), memlimit.WithRatio(memoryRatio))
	if err != nil && !errors.Is(err, memlimit.ErrCgroupsNotSupported) && !errors.Is(err, memlimit.ErrNoCgroup) {
		log.Warn("the memory limit is not set", "reason", err)
		return
	}
	text := "none"
	if limit != math.MaxInt64 {
		text = fmt.Sprintf("%dMiB", limit>>20)
	}
	log.Info("memory limit", "limit", text, "from", from)
}
