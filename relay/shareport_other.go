//go:build !linux

package relay

import "syscall"

// sharePort does nothing: on other systems a port can be had under several addresses.
func sharePort(syscall.RawConn, bool) {}
