//go:build !linux

package sockets

import "os"

// restrict does nothing: only Linux lets a process set a socket's permissions before bind.
func restrict(int, os.FileMode) {}
