//go:build !linux

package sockets

import "syscall"

// sharePort does nothing: other systems need no option to open one port at several addresses.
func sharePort(syscall.RawConn, bool) {}
