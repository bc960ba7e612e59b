package downstream

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// How fast clients may open connections that end soon. Each costs a handshake and the start of
// gRPC's transport, whatever its client does on it. Connections that stay are not counted:
// when a relay has been restarted, all of its clients come at once.

const (
	// shortLived is how long a connection has to stay not to be counted.
	shortLived = 5 * time.Second
	// churnBurst is how many seconds' worth of connections may end soon before the address's
	// next ones wait, and how many seconds they wait at most.
	churnBurst = 4
	// mostChurning is how many addresses are told apart. All further ones are one.
	mostChurning = 4096
)

// churn counts the connections of each address that ended soon.
type churn struct {
	mu    sync.Mutex
	addrs map[netip.Prefix]churned
	swept time.Time
}

// churned is what an address has to its account: so many connections, less those that
// were forgiven since.
type churned struct {
	connections float64
	at          time.Time
}

// now returns how many connections are not forgiven yet.
func (c churned) now(perSecond int, now time.Time) float64 {
	return max(0, c.connections-now.Sub(c.at).Seconds()*float64(perSecond))
}

// ended notes that a connection has ended soon.
func (c *churn) ended(addr netip.Prefix, perSecond int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.addrs == nil {
		c.addrs = map[netip.Prefix]churned{}
	}
	if _, there := c.addrs[addr]; !there && len(c.addrs) >= mostChurning {
		c.sweep(perSecond, now)
		if len(c.addrs) >= mostChurning {
			addr = netip.Prefix{}
		}
	}
	most := float64(2 * churnBurst * perSecond)
	c.addrs[addr] = churned{min(most, c.addrs[addr].now(perSecond, now)+1), now}
}

// sweep forgets the addresses that have nothing to their account. It looks at all of them once
// a second at most. The caller holds mu.
func (c *churn) sweep(perSecond int, now time.Time) {
	if now.Sub(c.swept) < time.Second {
		return
	}
	c.swept = now
	for addr, a := range c.addrs {
		if a.now(perSecond, now) == 0 {
			delete(c.addrs, addr)
		}
	}
}

// delay returns how long the address's next connection waits.
func (c *churn) delay(addr netip.Prefix, perSecond int, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, there := c.addrs[addr]
	if !there && len(c.addrs) >= mostChurning {
		a = c.addrs[netip.Prefix{}]
	}
	over := a.now(perSecond, now) - float64(churnBurst*perSecond)
	if over <= 0 {
		return 0
	}
	return time.Duration(over / float64(perSecond) * float64(time.Second))
}

// addressGroup returns the addresses that count as one: of IPv6 a client usually has all of
// a /64. Whatever has no IP address is one, too.
func addressGroup(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	return prefixOf(tcp.AddrPort().Addr())
}

func prefixOf(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap()
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	group, _ := ip.Prefix(bits) // the zero one of an address that is none
	return group
}
