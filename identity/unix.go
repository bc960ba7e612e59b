package identity

import (
	"net"
	"strconv"
)

// UnixAddr is the address of a client that connected over a unix socket: its user.
type UnixAddr struct {
	UID   uint32
	Known bool // the operating system reports the UID
}

// UnixAddrOf returns the address of the client at the other end of a connection.
func UnixAddrOf(c *net.UnixConn) UnixAddr {
	uid, ok := peerUID(c)
	return UnixAddr{UID: uid, Known: ok}
}

// Network implements net.Addr.
func (UnixAddr) Network() string { return "unix" }

// String implements net.Addr.
func (a UnixAddr) String() string {
	if !a.Known {
		return "unix"
	}
	return "unix:uid=" + strconv.FormatUint(uint64(a.UID), 10)
}

// uidOf returns the user of a client at that address.
func uidOf(address net.Addr) (uid uint32, ok bool) {
	switch at := address.(type) {
	case UnixAddr:
		return at.UID, at.Known
	case interface{ Unwrap() net.Addr }:
		return uidOf(at.Unwrap())
	}
	return 0, false
}
