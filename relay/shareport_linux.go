package relay

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// sharePort says whether a socket lets others of the same user have its port that say the same. It is best effort:
// without it the other socket cannot be opened.
func sharePort(c syscall.RawConn, shared bool) {
	on := 0
	if shared {
		on = 1
	}
	_ = c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, on) })
}
