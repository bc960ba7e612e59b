// Package identity determines who a client is, as far as it has proven: by a certificate, by a token, or by the
// process at the other end of a unix socket. The Node is not part of an identity, because a client can put anything
// there.
package identity

import (
	"net"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/peer"
)

// Source is the kind of proof of an identity.
type Source string

// The sources.
const (
	None Source = "none" // nothing
	MTLS Source = "mtls" // a certificate that was verified
	JWT  Source = "jwt"  // a token that was verified
	Unix Source = "unix" // the kernel, for a process on the same machine
)

// Identity is who a client is. Empty strings, empty lists and nil pointers are fields that the client has not proven.
// An Identity does not change once it is complete, so any number of goroutines may read it.
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

	// Local: the client is on the same machine. It came over loopback or a unix socket.
	Local bool `json:"-"`
	// Expires is when the client's certificate expires; zero without one.
	Expires time.Time `json:"-"`
	// Ends is when the client's streams end, because its certificate or token expires.
	Ends End `json:"-"`

	lifetime time.Duration // of the certificate
}

// String returns the identity and its source, for log lines.
func (id *Identity) String() string {
	switch {
	case id.SPIFFEID != "":
		return string(id.Source) + " " + id.SPIFFEID
	case id.Subject != "":
		return string(id.Source) + " " + id.Subject
	case len(id.DNSNames) > 0:
		return string(id.Source) + " " + id.DNSNames[0]
	case id.UID != nil:
		return string(id.Source) + " " + strconv.FormatUint(uint64(*id.UID), 10)
	default:
		return string(id.Source)
	}
}

// Expired reports whether the client's certificate has expired.
func (id *Identity) Expired(now time.Time) bool {
	return !id.Expires.IsZero() && !now.Before(id.Expires)
}

// Authenticated reports whether the client has proven who it is.
func (id *Identity) Authenticated() bool { return id.Source != None && id.Source != "" }

// Clients that have proven nothing share their identity.
var anonymous, anonymousLocal = &Identity{Source: None}, &Identity{Source: None, Local: true}

// Anonymous returns the identity of a client that has proven nothing. p is its connection, nil if unknown.
func Anonymous(p *peer.Peer) *Identity {
	if isLocalPeer(p) {
		return anonymousLocal
	}
	return anonymous
}

// isLocalPeer reports whether a client is on this machine, as far as its connection shows. Both ends must be on
// loopback: a sidecar proxy forwards remote clients from a loopback address, but to an address of the machine that
// they can reach.
func isLocalPeer(p *peer.Peer) bool {
	return p != nil && isLocal(p.Addr) && isLocal(p.LocalAddr)
}

func isLocal(address net.Addr) bool {
	switch at := address.(type) {
	case nil:
		return false
	case *net.TCPAddr:
		return at.IP.IsLoopback()
	case *net.UnixAddr, UnixAddr:
		return true
	case interface{ Unwrap() net.Addr }:
		return isLocal(at.Unwrap())
	}
	at, err := netip.ParseAddrPort(address.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// Fields returns the names of the fields that expressions may read.
func Fields() (names []string) {
	t := reflect.TypeFor[Identity]()
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "-" {
			names = append(names, name)
		}
	}
	return names
}
