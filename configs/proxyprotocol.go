package configs

import (
	"fmt"
	"net"
	"net/netip"
)

// This file is `listeners[].proxy_protocol`.

// ProxyProtocol says whose connections begin with a header of the PROXY protocol.
type ProxyProtocol struct {
	// The addresses of the balancers: IP addresses, networks such as 10.0.0.0/24, or, on a unix socket,
	// the word unix. Their connections must begin with a header. No other connection may.
	Trusted []string `yaml:"trusted" required:"true"`
}

// balancersOnUnixSocket are all who connect to a unix socket.
const balancersOnUnixSocket = "unix"

// networkOf returns a text as a network. It may be an IP address.
func networkOf(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	return netip.ParsePrefix(text)
}

// Trusts returns a function that reports whether connections from an address begin with a header. It is nil if none do.
func (p *ProxyProtocol) Trusts() func(net.Addr) bool {
	if p == nil {
		return nil
	}
	var networks []netip.Prefix
	for _, b := range p.Trusted {
		if b == balancersOnUnixSocket {
			return func(net.Addr) bool { return true } // check lets it be alone only
		}
		if n, err := networkOf(b); err == nil { // check has refused others
			networks = append(networks, n)
		}
	}
	return func(a net.Addr) bool {
		tcp, ok := a.(*net.TCPAddr)
		if !ok {
			return false
		}
		address := tcp.AddrPort().Addr().Unmap().WithZone("")
		for _, n := range networks {
			if n.Contains(address) {
				return true
			}
		}
		return false
	}
}

func (k *checker) proxyProtocol(path, address string, p *ProxyProtocol) {
	if len(p.Trusted) == 0 {
		k.fail(path+".trusted", "missing (want the balancers' addresses, such as [10.0.0.0/24])")
	}
	_, unix := UnixPath(address)
	for i, b := range p.Trusted {
		at := fmt.Sprintf("%s.trusted[%d]", path, i)
		n, err := networkOf(b)
		switch {
		case b == balancersOnUnixSocket && !unix:
			k.fail(at, "%s is for unix sockets (want an IP address or a network, or address: unix:/path)", b)
		case b == balancersOnUnixSocket:
		case err != nil:
			k.fail(at, "%q is not an address of balancers (want an IP address, a network such as 10.0.0.0/24, or unix)", b)
		case n != n.Masked():
			k.fail(at, "%s has bits beyond its network (want %s)", b, n.Masked())
		case n.Addr().Is4In6():
			k.fail(at, "%s is an IPv4 address in IPv6 notation (want the IPv4 address or network)", b)
		case unix:
			k.fail(at, "%s never connects to a unix socket (want unix)", b)
		}
	}
}
