package configs

// This file is the keys of `fleet`: the relays that are one client of the control planes.

import (
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fleet says which relays are one client of the control planes.
type Fleet struct {
	// The fleet's name. Relays with another name are no members, even if they are in `members`.
	Name string `yaml:"name" required:"true"`
	// Where the addresses of all members come from, with the relay's own: exactly one of the keys.
	Members FleetMembers `yaml:"members" required:"true"`
	// Where the other members connect: host:port. No client is served there.
	Listen string `yaml:"listen" required:"true"`
	// The address under which the others know the relay, as `members` has it: IP:port with `dns`. With
	// `etcd`, the default is `listen`, or the address of the interface that reaches etcd.
	Advertise string `yaml:"advertise" absent:"the relay finds itself among the members"`
	// TLS between the members, with certificates of both sides. Files are PEM, and the relay reads them
	// again when they change. Required unless only this host can reach `listen`.
	TLS *FleetTLS `yaml:"tls" absent:"plaintext"` // nil for plaintext
}

// FleetMembers are the sources of the members' addresses. Exactly one is set.
type FleetMembers struct {
	// The list of members in etcd, in which each relay puts itself.
	Etcd *FleetEtcd `yaml:"etcd" absent:"none"` // nil then
	// A name with the addresses of all members, such as that of a headless service, and the port of
	// `listen`: name:port. The relay looks it up every 3s. While that fails, the members stay.
	DNS string `yaml:"dns" absent:"none"`
	// The addresses of all members: host:port.
	Static []string `yaml:"static" absent:"none"`
}

// FleetEtcd is a list of members in etcd. While etcd is gone, the members stay.
type FleetEtcd struct {
	// The URLs of etcd's members: https://host:port, or http://host:port for plaintext.
	Endpoints []string `yaml:"endpoints" required:"true"`
	// What the keys of the relays begin with. Fleets with different names can have the same prefix.
	Prefix string `yaml:"prefix" default:"/xds-relay/"`
	// TLS with endpoints that are https URLs.
	TLS FleetEtcdTLS `yaml:"tls"`
	// How long a relay that ended without leaving the fleet stays in the list: a whole number of seconds. The
	// others notice earlier that it does not answer.
	Lease time.Duration `yaml:"lease" default:"5s"`
}

// FleetEtcdTLS is TLS towards etcd. Files are PEM, relative to the folder in which the relay is started, and the relay
// reads them again when they change.
type FleetEtcdTLS struct {
	// The roots of etcd's certificates.
	CAFile string `yaml:"ca_file" absent:"the system's roots"`
	// The certificate that the relay shows to etcd.
	CertFile string `yaml:"cert_file" absent:"none"`
	// The key of `cert_file`.
	KeyFile string `yaml:"key_file" absent:"none"`
}

// Server returns an endpoint as a server of an authority. Its TLS is nil for plaintext.
func (e *FleetEtcd) Server(endpoint string) *Server {
	u, err := url.Parse(endpoint)
	if err != nil {
		return &Server{} // no checked configuration has that
	}
	s := &Server{Address: u.Host}
	if u.Scheme == schemeHTTPS {
		s.TLS = &ServerTLS{CAFile: e.TLS.CAFile, CertFile: e.TLS.CertFile, KeyFile: e.TLS.KeyFile, MinVersion: TLS12}
	}
	return s
}

const (
	schemeHTTP  = "http"
	schemeHTTPS = "https"
)

// FleetTLS is TLS between the members of a fleet. Files are relative to the folder in which the relay is
// started.
type FleetTLS struct {
	// The certificate that the relay shows to the other members, as a server and as a client.
	CertFile string `yaml:"cert_file" required:"true"`
	// The key of `cert_file`.
	KeyFile string `yaml:"key_file" required:"true"`
	// The roots of the members' certificates.
	CAFile string `yaml:"ca_file" required:"true"`
	// The SPIFFE ID or DNS name that each member's certificate has. Members give each other everything,
	// also Secrets, so nobody else may have such a certificate.
	ServerID string `yaml:"server_id" required:"true"`
}

// Port returns the port of the members of a DNS name.
func (m *FleetMembers) Port() (host string, port uint16) {
	host, text, _ := net.SplitHostPort(m.DNS)
	n, _ := strconv.ParseUint(text, 10, 16)
	return host, uint16(n)
}

// PeersListener returns the listener on which other members of the fleet connect, with all defaults. It is nil if there is
// no fleet.
func (c *Config) PeersListener() *Listener {
	f := c.Fleet
	if f == nil {
		return nil
	}
	l := &Listener{Address: f.Listen, Protocol: ListenerGRPC}
	if err := (defaulter{}).fill(reflect.ValueOf(l).Elem(), "", "", nil); err != nil {
		panic(err) // a default in a tag is wrong, and no configuration can be read
	}
	l.Redirects, l.Secrets, l.WhenUnreachable = RedirectsPass, SecretsAnyone, UnreachableEnd
	l.MaxRequestBytes, l.MaxResponseBytes = peerBytes, peerResponse
	l.Keepalive = Keepalive{Time: peerKeepalive, Timeout: peerKeepalive}
	l.Windows.Connection, l.Buffers.Read = 16<<20, 32<<10
	// A member has as many names and scopes as its clients.
	l.Limits = Limits{Connections: peerConnections, ConnectionsPerSecond: peerChurn, StreamsPerConnection: peerStreams}
	l.Admission.StreamsPerSecond = 0 // scopes that move do not wait in line
	if t := f.TLS; t != nil {
		l.TLS = &ListenerTLS{
			CertFile: t.CertFile, KeyFile: t.KeyFile, ClientCAFile: t.CAFile,
			ClientCertificates: ClientCertificatesRequire, MinVersion: TLS13,
		}
	}
	return l
}

// Peer returns another member as a server of an authority, with all defaults.
func (f *Fleet) Peer(address string) *Server {
	s := &Server{
		Address: address, Protocol: ProtocolDelta, Aggregated: true, Globs: true,
		MaxRequestBytes: peerBytes, MaxResponseBytes: peerBytes,
		Keepalive: Keepalive{Time: 10 * time.Second, Timeout: peerKeepalive},
		Probe:     Probe{After: time.Second, Timeout: time.Second},
		Windows:   Windows{Stream: 1 << 20, Connection: 16 << 20},
		Backoff:   Backoff{Base: time.Second, Max: time.Second},
	}
	if t := f.TLS; t != nil {
		s.TLS = &ServerTLS{CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile, ServerID: t.ServerID, MinVersion: TLS13}
	}
	return s
}

const (
	// peerBytes bounds a message between members. A request has the names of all clients of a relay.
	peerBytes Bytes = 64 << 20
	// peerResponse is the size above which a response to a member is split.
	peerResponse Bytes = 4 << 20
	// peerConnections, peerChurn and peerStreams are limits of `listen`: those of Limits with these names.
	peerConnections, peerChurn, peerStreams = 1000, 100, 10000
	// peerKeepalive is the time between two pings of a member's connection, and that for the answer.
	peerKeepalive = time.Second
)

func (k *checker) fleet(f *Fleet, taken map[string]string) {
	if f == nil {
		return
	}
	k.present("fleet.name", f.Name, "want a name that all members of the fleet have, such as edge")
	k.members(&f.Members)
	if _, unix := UnixPath(f.Listen); unix && !k.isUnusable("fleet.listen") {
		k.fail("fleet.listen", "%q is a unix socket, which other hosts cannot reach (want host:port)", f.Listen)
	} else if k.listenAddress("fleet.listen", f.Listen, taken) && f.TLS == nil && !IsLoopback(f.Listen) && !k.isUnusable("fleet.tls") {
		k.fail("fleet.listen", "%q: other hosts can reach it, and there is no fleet.tls, so anyone there could have everything that the relay has (want fleet.tls with cert_file, key_file, ca_file and server_id)", f.Listen)
	}
	if f.Advertise != "" {
		k.memberAddress("fleet.advertise", f.Advertise)
		if host, _, _ := net.SplitHostPort(f.Advertise); f.Members.DNS != "" && net.ParseIP(host) == nil {
			k.fail("fleet.advertise", "%q has a name, and members.dns gives IP addresses (want IP:port)", f.Advertise)
		}
	}
	if t := f.TLS; t != nil {
		k.present("fleet.tls.cert_file", t.CertFile, "want the file of the relay's certificate")
		k.present("fleet.tls.key_file", t.KeyFile, "want the file of the certificate's key")
		k.present("fleet.tls.ca_file", t.CAFile, "want the file of the roots of the members' certificates")
		if k.present("fleet.tls.server_id", t.ServerID, "want the SPIFFE ID or DNS name in the certificates of all members: without it, everyone with a certificate of ca_file could have everything that the relay has") {
			if err := checkServerID(t.ServerID); err != nil {
				k.fail("fleet.tls.server_id", "%w", err)
			}
		}
	}
}

// members checks where the members' addresses come from.
func (k *checker) members(m *FleetMembers) {
	const path = "fleet.members"
	var given []string
	for _, key := range []string{"etcd", "dns", "static"} {
		if k.has(path + "." + key) {
			given = append(given, key)
		}
	}
	switch {
	case len(given) > 1:
		k.fail(path, "has several of etcd, dns and static (want one of them)")
	case len(given) == 0:
		k.fail(path, "has none of etcd, dns and static (want one of them)")
	case m.Etcd != nil:
		k.etcd(path+".etcd", m.Etcd)
	case given[0] == "dns":
		k.memberAddress(path+".dns", m.DNS)
	case given[0] == "static" && len(m.Static) == 0:
		k.fail(path+".static", "is empty (want the addresses of all members, such as [10.0.0.1:18100, 10.0.0.2:18100])")
	}
	for i, address := range m.Static {
		at := fmt.Sprintf("%s.static[%d]", path, i)
		k.memberAddress(at, address)
		if first := slices.Index(m.Static, address); first < i {
			k.fail(at, "%q is already %s.static[%d] (want each member once)", address, path, first)
		}
	}
}

func (k *checker) memberAddress(path, address string) {
	if k.isUnusable(path) {
		return
	}
	if err := checkAddress(address, false); err != nil {
		k.fail(path, "%w", err)
	}
}

// etcd checks the keys of a list in etcd.
func (k *checker) etcd(path string, e *FleetEtcd) {
	if len(e.Endpoints) == 0 && !k.isUnusable(path+".endpoints") {
		k.fail(path+".endpoints", "is missing or empty (want the URLs of etcd's members, such as [https://etcd-0.example.com:2379])")
	}
	schemes := map[string]bool{}
	for i, endpoint := range e.Endpoints {
		at := fmt.Sprintf("%s.endpoints[%d]", path, i)
		if k.isUnusable(at) {
			continue
		}
		u, err := url.Parse(endpoint)
		switch {
		case err != nil || u.Scheme != schemeHTTP && u.Scheme != schemeHTTPS || *u != (url.URL{Scheme: u.Scheme, Host: u.Host}):
			k.fail(at, "%q is no URL of etcd (want https://host:port, or http://host:port for plaintext)", endpoint)
		default:
			if err := checkAddress(u.Host, false); err != nil {
				k.fail(at, "%w", err)
			}
			schemes[u.Scheme] = true
		}
	}
	if len(schemes) > 1 {
		k.fail(path+".endpoints", "has https and http URLs (want all with TLS, or none)")
	}
	if k.has(path+".tls") && schemes[schemeHTTP] {
		k.fail(path+".tls", "is given, and the endpoints are plaintext (want https URLs)")
	}
	if t := e.TLS; (t.CertFile == "") != (t.KeyFile == "") {
		if t.CertFile == "" {
			k.fail(path+".tls.cert_file", "missing (want the certificate of key_file, or neither)")
		} else {
			k.fail(path+".tls.key_file", "missing (want the key of cert_file, or neither)")
		}
	}
	if !strings.HasPrefix(e.Prefix, "/") || !strings.HasSuffix(e.Prefix, "/") {
		k.fail(path+".prefix", "%q does not begin and end with a slash (want a folder such as /xds-relay/)", e.Prefix)
	}
	if e.Lease%time.Second != 0 || e.Lease < shortestLease || e.Lease > longestLease {
		k.fail(path+".lease", "%s is no lease of etcd (want a whole number of seconds from %s to %s)", e.Lease, shortestLease, longestLease)
	}
}

// shortestLease leaves time for the signs of life of a relay that is busy.
const shortestLease, longestLease = 2 * time.Second, time.Minute
