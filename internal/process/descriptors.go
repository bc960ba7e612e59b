//go:build linux || darwin

package process

import (
	"syscall"
)

// MaxDescriptors returns how many file descriptors the process may have, or 0 if that is
// not known. The Go runtime has raised the soft limit to the hard one.
func MaxDescriptors() uint64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return l.Cur
}
