package sockets

import (
	"os"
	"syscall"
)

// restrict sets the permissions with which bind creates the file of a unix socket, so that no one else can connect at
// any time. It is best effort: the caller sets them again.
func restrict(fd int, permissions os.FileMode) { _ = syscall.Fchmod(fd, uint32(permissions)) }
