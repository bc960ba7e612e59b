package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Most of what the relay has is live, and Go lets garbage grow to as much again, for
// which a container need not have room. So the runtime is told what the container may
// use, and collects in time.

// memoryRatio is how much of that Go gets, unless AUTOMEMLIMIT says it: the rest is for
// what the runtime does not count, and for peaks.
const memoryRatio = 0.9

// limitMemory sets the runtime's memory limit from the container's, if neither
// GOMEMLIMIT nor AUTOMEMLIMIT=off is set, and logs what it is.
func limitMemory(log *slog.Logger, container memlimit.Provider) {
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
