// Package identity is who a client is, as far as it has proven: by a certificate, by a token, or
// by the process at the other end of a unix socket. The Node is not part of it, because a client
// can say anything there.
package identity

import (
	"net"
	"net/netip"
	"time"
)

// Source is what an identity was proven by.
type Source string

// The sources.
const (
	None Source = "none" // nothing
	MTLS Source = "mtls" // a certificate that was verified
	JWT  Source = "jwt"  // a token that was verified
	Unix Source = "unix" // the kernel, for a process on the same machine
)

// Identity is who a client is. A text that is empty, a list that is empty and a pointer that is
// nil are what the client has not proven. Nobody changes an Identity once it is made, so any
// number of goroutines may read it.
type Identity struct {
	Source Source `json:"source"`
	// SPIFFEID is the SPIFFE ID in the client's certificate, as spiffe://example.org/ns/pay/sa/gw.
	// TrustDomain is example.org then, SPIFFEPath /ns/pay/sa/gw.
	SPIFFEID    string `json:"spiffe_id,omitempty"`
	TrustDomain string `json:"trust_domain,omitempty"`
	SPIFFEPath  string `json:"spiffe_path,omitempty"`
	// DNSNames are the DNS names in the client's certificate.
	DNSNames []string `json:"dns_names,omitempty"`
	// Subject is the subject of the client's certificate, as RFC 2253 writes it, or the `sub` of
	// its token.
	Subject string `json:"subject,omitempty"`
	// Claims are those of the client's token, as encoding/json decodes them.
	Claims map[string]any `json:"claims,omitempty"`
	// UID is the user of the process at the other end of a unix socket.
	UID *uint32 `json:"uid,omitempty"`

	// Local says that the client is on the same machine: it came over loopback or a unix socket.
	Local bool `json:"-"`
	// Expires is when what the client has shown ends; zero for never.
	Expires time.Time `json:"-"`
}

// Authenticated reports whether the client has proven who it is.
func (id *Identity) Authenticated() bool { return id.Source != None && id.Source != "" }

// Anonymous returns the identity of a client at this address that has proven nothing.
func Anonymous(address net.Addr) *Identity {
	return &Identity{Source: None, Local: isLocal(address)}
}

func isLocal(address net.Addr) bool {
	switch at := address.(type) {
	case nil:
		return false
	case *net.TCPAddr:
		return at.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	at, err := netip.ParseAddrPort(address.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}
