package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf returns the CPU time of a process, in nanoseconds and not in the ticks of /proc. The kernel
// derives the id of another process's clock from its pid: CPUCLOCK_SCHED of linux/posix-timers_types.h.
func cpuOf(pid int) (time.Duration, error) {
	const sched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}
