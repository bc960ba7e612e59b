package sockets

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// sharePort sets whether a socket may share its port with other sockets of the same user that also set it. It is best
// effort: if it fails, the other socket cannot be opened.
func sharePort(c syscall.RawConn, shared bool) {
	on := 0
	if shared {
		on = 1
	}
	_ = c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, on) })
}
