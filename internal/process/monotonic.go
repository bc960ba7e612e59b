//go:build unix

package process

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// MonotonicTime is the state with the time by which systemd knows which reload [NotifyReloading] is for.
func MonotonicTime() string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return "" // not reached: every Linux has that clock
	}
	return fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/int64(time.Microsecond))
}
