package downstream

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/pires/go-proxyproto"
)

// The PROXY protocol, versions 1 and 2: a balancer begins each connection with a header that has the client's address.
// The header comes before TLS. The goroutine of the connection reads it, and it has to arrive in the time that there is
// for the handshake. The relay reads exactly the header, and so needs no buffer for what follows it.

// origin is where the client of a connection is.
type origin struct {
	addr  net.Addr
	group netip.Prefix // see addressGroup
}

// mostProxyHeader is the size of the largest header, in bytes. Beside the addresses, version 2 allows a balancer to send
// for example the certificate of the client.
const mostProxyHeader = 4 << 10

const (
	// proxyV2Fixed is the part of a header of version 2 that contains the length of the rest.
	proxyV2Fixed = 16
	// proxyV1Most is the size of the largest header of version 1.
	proxyV1Most = 107
)

var errNoProxyHeader = errors.New("the connection does not begin with a header")

// awaitProxyHeader reads the header, if the connection begins with one and it has not been read. The error ends the
// connection.
func (c *limitedConn) awaitProxyHeader() error {
	if !c.proxied {
		return nil
	}
	c.proxied = false
	text, err := readProxyHeader(c.Conn)
	var client net.Addr
	if err == nil {
		client, err = clientOf(text)
	}
	switch {
	case err != nil && len(text) == 0 && isEnd(err): // a probe of the port
		return err
	case err != nil:
		c.failed(ProxyHeader, err)
		return err
	}
	if client != nil {
		c.origin.Store(&origin{client, addressGroup(client)})
	}
	c.listener.delay(c)
	c.wait()
	return nil
}

// readProxyHeader reads a header, and nothing beyond it. After an error it returns what it has read.
func readProxyHeader(r io.Reader) ([]byte, error) {
	text := make([]byte, len(proxyproto.SIGV2), proxyV2Fixed)
	if n, err := io.ReadFull(r, text); err != nil {
		return text[:n], err
	}
	switch {
	case bytes.Equal(text, proxyproto.SIGV2):
		text = text[:proxyV2Fixed]
		if _, err := io.ReadFull(r, text[len(proxyproto.SIGV2):]); err != nil {
			return text, err
		}
		rest := int(binary.BigEndian.Uint16(text[proxyV2Fixed-2:]))
		if rest > mostProxyHeader {
			return text, fmt.Errorf("the header has %d bytes (want at most %d)", rest, mostProxyHeader)
		}
		text = append(text, make([]byte, rest)...)
		_, err := io.ReadFull(r, text[proxyV2Fixed:])
		return text, err
	case bytes.HasPrefix(text, proxyproto.SIGV1):
		for len(text) < proxyV1Most {
			text = append(text, 0)
			last := text[len(text)-1:]
			if _, err := io.ReadFull(r, last); err != nil || last[0] == '\n' {
				return text, err
			}
		}
		return text, fmt.Errorf("the line of the header has no end (want at most %d bytes)", proxyV1Most)
	}
	return text, errNoProxyHeader
}

// clientOf returns the address of the client in a header. It returns nil if the connection is the balancer's own, such as
// a health check.
func clientOf(text []byte) (net.Addr, error) {
	h, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(text), len(text)))
	if err != nil {
		return nil, err
	}
	if h.Version == 2 && h.Command.IsLocal() {
		return nil, nil //nolint:nilnil // it has no client
	}
	client, _, ok := h.TCPAddrs()
	if !ok {
		return nil, errors.New("the header has no client's address (want TCP over IPv4 or IPv6, or the command LOCAL)")
	}
	return client, nil
}

// isProxyHeader reports whether the first bytes of a client are those of a header.
func isProxyHeader(first []byte) bool {
	const enough = 5 // crypto/tls keeps the first five bytes of a client that does not speak TLS
	if len(first) < enough {
		return false
	}
	n := min(len(first), len(proxyproto.SIGV2))
	return bytes.Equal(first[:n], proxyproto.SIGV2[:n]) || bytes.HasPrefix(first, proxyproto.SIGV1)
}
