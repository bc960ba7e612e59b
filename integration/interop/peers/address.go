package peers

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
)

var addresses atomic.Uint32

// Address returns an address of the loopback network that nothing else uses, so that a server can come back
// on it. Each call returns another IP address; the port is one that was free.
func Address(t testing.TB) string {
	t.Helper()
	n := addresses.Add(1)
	host := fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()%250, 1+n/250%250, 1+n%250)
	// A child that starts meanwhile would keep the socket open until it has become another program.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// Host returns the IP address of an address.
func Host(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

// Listen listens on an address that a listener of this process may have had before.
func Listen(t testing.TB, address string) (l net.Listener) {
	t.Helper()
	// A process that is being started may still have the descriptor of that listener (see Address).
	Eventually(t, "an address is free", func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l
}
