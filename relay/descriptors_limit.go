//go:build linux || darwin

package relay

import (
	"syscall"
)

// maxDescriptors returns how many descriptors the process may have; 0 if that is not known.
// Go has raised the soft limit to the hard one.
func maxDescriptors() uint64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return l.Cur
}
