package identity

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerUID returns the user of the connected process, as reported by the kernel: unix(7), SO_PEERCRED.
func peerUID(c *net.UnixConn) (uid uint32, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false // the connection is closed
	}
	err = raw.Control(func(fd uintptr) {
		credentials, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			uid, ok = credentials.Uid, true
		}
	})
	return uid, ok && err == nil
}
