//go:build !linux

package relay

import "os"

// restrict does nothing: only on Linux a socket has permissions before bind.
func restrict(int, os.FileMode) {}
