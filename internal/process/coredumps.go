//go:build linux || darwin

package process

import "syscall"

// ForbidCoreDumps has the kernel write no core dump of the process, because its memory holds
// secrets. (Go asks for one only with GOTRACEBACK=crash.)
func ForbidCoreDumps() error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &l); err != nil {
		return err
	}
	l.Cur = 0
	return syscall.Setrlimit(syscall.RLIMIT_CORE, &l)
}
