package certs

// Whom handshakes accept: who listens, who connects, and both after their files have changed.

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// shake shakes hands, and returns what each side says of it.
func shake(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			accepted <- err
			return
		}
		defer conn.Close()
		s := tls.Server(conn, server)
		if err = s.Handshake(); err == nil {
			state = s.ConnectionState()
			_, err = s.Write([]byte("x")) // after the session tickets
		}
		accepted <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	defer conn.Close()
	check(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	c := tls.Client(conn, client)
	_, clientErr = c.Read(make([]byte, 1))
	serverErr = <-accepted
	return state, serverErr, clientErr
}

// tlsClient is the TLS of a client that trusts a CA, and has a certificate if there is one.
func tlsClient(trusts *certtest.CA, own *certtest.Pair) *tls.Config {
	c := &tls.Config{RootCAs: trusts.Pool(), ServerName: "127.0.0.1"}
	if own != nil {
		// Unlike Certificates, also if the server does not know the CA.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own.TLS, nil }
	}
	return c
}

// listenOnDisk returns a listener with files in dir, which it writes.
func listenOnDisk(t *testing.T, s *Part, dir string, own *certtest.Pair, clients *certtest.CA, o ListenerOptions) *Listener {
	t.Helper()
	writePair(t, dir, own)
	o.CertFile, o.KeyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if clients != nil {
		o.ClientCAFile = filepath.Join(dir, "clients.pem")
		write(t, o.ClientCAFile, certtest.PEM(clients))
	}
	l, err := s.Listener(o)
	check(t, err)
	return l
}

func TestClientsOfAListener(t *testing.T) {
	ca, clients, strangers := certtest.NewCA(t, "ca"), certtest.NewCA(t, "clients"), certtest.NewCA(t, "strangers")
	own := ca.Issue(t, certtest.Loopback)
	good, strange := clients.Issue(t, certtest.Options{CommonName: "good"}), strangers.Issue(t, certtest.Options{CommonName: "strange"})
	expired := clients.Issue(t, certtest.Options{NotAfter: time.Now().Add(-time.Minute)})
	const refused = "certificate"
	for _, tt := range []struct {
		name     string
		clients  *certtest.CA // nil: no client_ca_file
		optional bool
		client   *certtest.Pair
		want     string // in the error; empty for none
	}{
		{"required, good", clients, false, good, ""},
		{"required, none", clients, false, nil, refused},
		{"required, of another CA", clients, false, strange, refused},
		{"required, expired", clients, false, expired, refused},
		{"optional, good", clients, true, good, ""},
		{"optional, none", clients, true, nil, ""},
		{"optional, of another CA", clients, true, strange, refused},
		{"optional, expired", clients, true, expired, refused},
		{"not asked", nil, false, nil, ""},
		{"not asked, has one", nil, false, strange, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := newStore(t)
			l := listenOnDisk(t, s, t.TempDir(), own, tt.clients, ListenerOptions{ClientsOptional: tt.optional})
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				client := tlsClient(ca, tt.client)
				client.MaxVersion = version
				state, serverErr, clientErr := shake(t, l.Config(), client)
				if tt.want == "" {
					if serverErr != nil || clientErr != nil {
						t.Errorf("%s: the listener says %v, the client %v, want no error", tls.VersionName(version), serverErr, clientErr)
					}
					if asked := tt.clients != nil && tt.client != nil; (len(state.PeerCertificates) > 0) != asked {
						t.Errorf("%s: the listener sees the certificates %v", tls.VersionName(version), state.PeerCertificates)
					}
					continue
				}
				if serverErr == nil || clientErr == nil || !strings.Contains(serverErr.Error(), tt.want) {
					t.Errorf("%s: the listener says %v, the client %v, want errors", tls.VersionName(version), serverErr, clientErr)
				}
			}
		})
	}
}

func TestTLSIsNoLowerThanTheMinimum(t *testing.T) {
	ca := certtest.NewCA(t, "ca")
	dir := t.TempDir()
	s, _ := newStore(t)
	for _, least := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		l := listenOnDisk(t, s, dir, ca.Issue(t, certtest.Loopback), nil, ListenerOptions{MinVersion: least})
		write(t, filepath.Join(dir, "ca.pem"), certtest.PEM(ca))
		toServer, err := s.Server(ServerOptions{CAFile: filepath.Join(dir, "ca.pem"), Host: "127.0.0.1", MinVersion: least})
		check(t, err)
		for _, other := range []uint16{tls.VersionTLS11, tls.VersionTLS12, tls.VersionTLS13} {
			client := tlsClient(ca, nil)
			client.MinVersion, client.MaxVersion = other, other
			_, serverErr, _ := shake(t, l.Config(), client)
			if got, want := serverErr == nil, other >= least; got != want {
				t.Errorf("a listener with at least %s accepts %s: %t", tls.VersionName(least), tls.VersionName(other), got)
			}
			server := l.Config()
			server.GetConfigForClient, server.Certificates = nil, []tls.Certificate{*l.pair.Get()}
			server.MinVersion, server.MaxVersion = other, other
			_, _, clientErr := shake(t, server, toServer)
			if got, want := clientErr == nil, other >= least; got != want {
				t.Errorf("with at least %s the relay accepts a server with %s: %t (%v)", tls.VersionName(least), tls.VersionName(other), got, clientErr)
			}
		}
	}
}

// A session that a client resumes ends with the CA that has signed the client's certificate,
// and with the certificate. The client gets a full handshake then.
func TestNoSessionOutlivesTheCAOfItsClient(t *testing.T) {
	ca, old, next := certtest.NewCA(t, "ca"), certtest.NewCA(t, "old"), certtest.NewCA(t, "next")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			t.Parallel()
			s, _ := newStore(t)
			dir := t.TempDir()
			l := listenOnDisk(t, s, dir, ca.Issue(t, certtest.Loopback), old, ListenerOptions{})
			config := l.Config()
			own := old.Issue(t, certtest.Options{})
			client := tlsClient(ca, nil)
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own.TLS, nil }
			client.ClientSessionCache, client.MaxVersion = tls.NewLRUClientSessionCache(1), version
			attempt := func(what string, want bool) {
				t.Helper()
				state, serverErr, _ := shake(t, config, client)
				if serverErr != nil || state.DidResume != want {
					t.Errorf("%s: resumed %t, %v, want %t", what, state.DidResume, serverErr, want)
				}
			}
			trust := func(cas ...*certtest.CA) {
				t.Helper()
				write(t, filepath.Join(dir, "clients.pem"), certtest.PEM(cas...))
				await(t, "the CAs are read", func() bool {
					return len(l.ca.Get().Certificates) == len(cas) && l.ca.Get().Certificates[0].Equal(cas[0].Certificate)
				})
			}
			attempt("at first", false)
			attempt("again", true)
			trust(old, next)
			attempt("with one more CA", true)
			replaced := ca.Issue(t, certtest.Loopback)
			writePair(t, dir, replaced)
			await(t, "the listener's certificate is read", func() bool { return l.Certificate().Equal(replaced.TLS.Leaf) })
			attempt("with another certificate of the listener", true)
			trust(next)
			if state, serverErr, _ := shake(t, config, client); serverErr == nil {
				t.Errorf("a client without a CA is accepted (resumed: %t)", state.DidResume)
			}
			own = next.Issue(t, certtest.Options{})
			attempt("with a certificate of the new CA, and the old session", false)
		})
	}
}

func TestWhichServersTheRelayAccepts(t *testing.T) {
	ca, strangers := certtest.NewCA(t, "ca"), certtest.NewCA(t, "strangers")
	loopback := certtest.Loopback.IPs
	const id = "spiffe://example.org/ns/istio-system/sa/istiod"
	for _, tt := range []struct {
		name   string
		server *certtest.Pair
		o      ServerOptions
		want   string // in the error; empty for none
	}{
		{"the host", ca.Issue(t, certtest.Loopback), ServerOptions{Host: "127.0.0.1"}, ""},
		{"another host", ca.Issue(t, certtest.Options{DNSNames: []string{"cp.example.com"}}), ServerOptions{Host: "127.0.0.1"}, "cannot validate certificate for 127.0.0.1"},
		{"the server_name", ca.Issue(t, certtest.Options{DNSNames: []string{"cp.example.com"}}), ServerOptions{Host: "cp.example.com", ServerName: "cp.example.com"}, ""},
		{"another CA", strangers.Issue(t, certtest.Loopback), ServerOptions{Host: "127.0.0.1"}, "certificate signed by unknown authority"},
		{"expired", ca.Issue(t, certtest.Options{IPs: loopback, NotAfter: time.Now().Add(-time.Minute)}), ServerOptions{Host: "127.0.0.1"}, "certificate has expired"},

		{"the SPIFFE ID", ca.Issue(t, certtest.Options{SPIFFEID: id}), ServerOptions{Host: "127.0.0.1", ID: id}, ""},
		{"another SPIFFE ID", ca.Issue(t, certtest.Options{SPIFFEID: id + "2", IPs: loopback}), ServerOptions{Host: "127.0.0.1", ID: id}, "the server is " + id + "2, and not " + id},
		{"another trust domain", ca.Issue(t, certtest.Options{SPIFFEID: strings.Replace(id, "org", "com", 1)}), ServerOptions{Host: "127.0.0.1", ID: id}, "and not " + id},
		{"no SPIFFE ID", ca.Issue(t, certtest.Loopback), ServerOptions{Host: "127.0.0.1", ID: id}, "the server is not " + id + ": its certificate contains no URI SAN"},
		{"the SPIFFE ID of another CA", strangers.Issue(t, certtest.Options{SPIFFEID: id}), ServerOptions{Host: "127.0.0.1", ID: id}, "certificate signed by unknown authority"},
		{"the SPIFFE ID, expired", ca.Issue(t, certtest.Options{SPIFFEID: id, NotAfter: time.Now().Add(-time.Minute)}), ServerOptions{Host: "127.0.0.1", ID: id}, "certificate has expired"},

		{"the DNS name", ca.Issue(t, certtest.Options{DNSNames: []string{"istiod.example.org"}, IPs: loopback}), ServerOptions{Host: "127.0.0.1", ID: "istiod.example.org"}, ""},
		{"another DNS name", ca.Issue(t, certtest.Options{DNSNames: []string{"istiod2.example.org"}, IPs: loopback}), ServerOptions{Host: "127.0.0.1", ID: "istiod.example.org"}, "not istiod.example.org"},
		{"the DNS name, and another host", ca.Issue(t, certtest.Options{DNSNames: []string{"istiod.example.org"}}), ServerOptions{Host: "127.0.0.1", ID: "istiod.example.org"}, "cannot validate certificate for 127.0.0.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := newStore(t)
			tt.o.CAFile = filepath.Join(t.TempDir(), "ca.pem")
			write(t, tt.o.CAFile, certtest.PEM(ca))
			client, err := s.Server(tt.o)
			check(t, err)
			_, _, err = shake(t, &tls.Config{Certificates: []tls.Certificate{tt.server.TLS}}, client)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestAServerIsVerifiedByTheNewestCAAndSeesTheNewestCertificate(t *testing.T) {
	t.Parallel()
	old, next := certtest.NewCA(t, "old"), certtest.NewCA(t, "next")
	first, second := old.Issue(t, certtest.Options{CommonName: "first"}), next.Issue(t, certtest.Options{CommonName: "second", NotAfter: time.Now().Add(2 * time.Hour)})
	dir := t.TempDir()
	writePair(t, dir, first)
	o := ServerOptions{CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"), Host: "127.0.0.1"}
	write(t, o.CAFile, certtest.PEM(old))
	s, _ := newStore(t)
	client, err := s.Server(o)
	check(t, err)
	serverOf := func(ca *certtest.CA) *tls.Config {
		pool := old.Pool()
		pool.AddCert(next.Certificate)
		return &tls.Config{Certificates: []tls.Certificate{ca.Issue(t, certtest.Loopback).TLS}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	}
	expect := func(ca *certtest.CA, seen *x509.Certificate) {
		t.Helper()
		state, serverErr, clientErr := shake(t, serverOf(ca), client)
		if serverErr != nil || clientErr != nil || !state.PeerCertificates[0].Equal(seen) {
			t.Errorf("the server says %v, the relay %v", serverErr, clientErr)
		}
	}
	expect(old, first.TLS.Leaf)
	if _, _, err := shake(t, serverOf(next), client); err == nil {
		t.Error("a server of another CA is accepted")
	}
	write(t, o.CAFile, certtest.PEM(next))
	writePair(t, dir, second)
	await(t, "the files are read", func() bool {
		_, _, err := shake(t, serverOf(next), client)
		return err == nil
	})
	await(t, "the pair is read", func() bool { return len(s.Statuses()) == 2 && s.Statuses()[1].Expires.Equal(second.TLS.Leaf.NotAfter) })
	expect(next, second.TLS.Leaf)
	if _, _, err := shake(t, serverOf(old), client); err == nil {
		t.Error("a server of the CA that was taken away is accepted")
	}
	// A server that does not know the relay's CA sees no certificate, as with crypto/tls.
	stranger := &tls.Config{Certificates: []tls.Certificate{next.Issue(t, certtest.Loopback).TLS}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: old.Pool()}
	state, serverErr, _ := shake(t, stranger, client)
	if serverErr != nil || len(state.PeerCertificates) != 0 {
		t.Errorf("a server that does not know the relay's CA says %v and sees %v", serverErr, state.PeerCertificates)
	}
}

// Connections keep their configuration, so they share one as long as the files stay.
func TestHandshakesShareAConfigurationUntilAFileChanges(t *testing.T) {
	ca, next := certtest.NewCA(t, "ca"), certtest.NewCA(t, "next")
	s, _ := newStore(t)
	dir := t.TempDir()
	l := listenOnDisk(t, s, dir, ca.Issue(t, certtest.Loopback), ca, ListenerOptions{})
	config := func() *tls.Config {
		c, err := l.Config().GetConfigForClient(nil)
		check(t, err)
		return c
	}
	first := config()
	if config() != first {
		t.Error("two handshakes have two configurations")
	}
	replace(t, filepath.Join(dir, "clients.pem"), certtest.PEM(next))
	await(t, "another CA", func() bool { return config().ClientCAs.Equal(next.Pool()) })
	second := config()
	writePair(t, dir, ca.Issue(t, certtest.Options{CommonName: "another", IPs: certtest.Loopback.IPs}))
	await(t, "another certificate", func() bool {
		c := config()
		return c != second && c.ClientCAs.Equal(next.Pool()) && string(c.Certificates[0].Certificate[0]) != string(second.Certificates[0].Certificate[0])
	})
}
