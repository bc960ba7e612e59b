package downstream

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// How fast clients may open short-lived connections. Each costs a handshake and the start of gRPC's transport, whatever
// its client does on it. Connections that stay are not counted: after a restart of the relay, all of its clients
// connect at once.

const (
	// shortLived is how long a connection has to last in order not to be counted.
	shortLived = 5 * time.Second
	// churnBurst is how many seconds' worth of short-lived connections an address may have before its next connections
	// wait, and how many seconds they wait at most.
	churnBurst = 4
	// mostChurning is how many addresses are counted separately. All further ones share one count.
	mostChurning = 4096
)

// churn counts the short-lived connections of each address.
type churn struct {
	mu    sync.Mutex
	addrs map[netip.Prefix]churned
	swept time.Time
}

// churned is the count of an address: its short-lived connections, less those that were forgiven since.
type churned struct {
	connections float64
	at          time.Time
}

// now returns how many connections are not forgiven yet.
func (c churned) now(perSecond int, now time.Time) float64 {
	return max(0, c.connections-now.Sub(c.at).Seconds()*float64(perSecond))
}

// ended records that a short-lived connection has ended.
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

// sweep forgets the addresses whose count is zero. It looks at all addresses at most once a second. The caller holds
// mu.
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

// addressGroup returns the addresses that count as one: an IPv6 client usually has all of a /64. All connections
// without an IP address count as one, too.
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
	group, _ := ip.Prefix(bits) // zero if it is not an IP address
	return group
}
