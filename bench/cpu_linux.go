package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf is what a process has used, in nanoseconds and not in the ticks of /proc. The
// kernel's name of another process's clock is made of its id: CPUCLOCK_SCHED of
// linux/posix-timers_types.h.
func cpuOf(pid int) (time.Duration, error) {
	const sched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}
