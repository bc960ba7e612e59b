package relay

import (
	"os"
	"syscall"
)

// restrict sets the permissions that bind gives to the file of a unix socket, so that at no
// time others may connect. It is best effort: the caller sets them again.
func restrict(fd int, permissions os.FileMode) { _ = syscall.Fchmod(fd, uint32(permissions)) }
