package certs

// SPIFFE: who the relay is, and whom it trusts, as an agent says.

import (
	"crypto/tls"
	"path/filepath"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

const (
	relayID  = "spiffe://example.org/ns/xds/sa/relay"
	clientID = "spiffe://example.org/ns/pay/sa/gw"
	serverID = "spiffe://example.org/ns/istio-system/sa/istiod"
)

// spiffeClient is the TLS of a client that does not verify the listener.
func spiffeClient(t *testing.T, own *certtest.Pair) *tls.Config {
	c := tlsClient(certtest.NewCA(t, "none"), own)
	c.InsecureSkipVerify = true
	return c
}

func TestAListenerHasItsCertificateAndRootsFromAnAgent(t *testing.T) {
	t.Parallel()
	ca, other, strangers := certtest.NewCA(t, "example.org"), certtest.NewCA(t, "other.org"), certtest.NewCA(t, "strangers")
	agent, socket := certtest.NewAgent(), filepath.Join(t.TempDir(), "agent.sock")
	s, log := newStore(t)
	l, err := s.Listener(ListenerOptions{WorkloadAPI: "unix:" + socket})
	check(t, err)
	optional, err := s.Listener(ListenerOptions{WorkloadAPI: "unix:" + socket, ClientsOptional: true})
	check(t, err)
	good := ca.Issue(t, certtest.Options{SPIFFEID: clientID})

	// The agent is not there. The relay starts, and handshakes fail.
	log.expect(t, `level=ERROR msg="SPIFFE agent has sent no SVID, TLS handshakes fail until it does" workload_api=unix:`+socket+" error=")
	if _, err, _ := shake(t, l.Config(), spiffeClient(t, good)); err == nil || err.Error() != "no SVID from unix:"+socket+" yet" {
		t.Errorf("without an agent, the listener says %v", err)
	}
	if got := s.Statuses(); len(got) != 1 || got[0].Role != RoleListener || !got[0].Expires.IsZero() || got[0].Problem == "" || got[0].Failures == 0 {
		t.Errorf("without an agent, the status is %+v", got)
	}
	if l.Certificate() != nil {
		t.Error("without an agent, there is a certificate")
	}

	own := agent.Issue(t, relayID, ca, map[string]*certtest.CA{"spiffe://other.org": other})
	agent.Serve(t, socket)
	log.expect(t, `level=INFO msg="received SVID" workload_api=unix:`+socket+" spiffe_id="+relayID)
	if !l.Certificate().Equal(own.TLS.Leaf) {
		t.Error("the listener's certificate is not the SVID")
	}
	for _, tt := range []struct {
		name               string
		client             *certtest.Pair
		required, optional bool // whether the client is accepted
	}{
		{"of the trust domain", good, true, true},
		{"of a federated trust domain", other.Issue(t, certtest.Options{SPIFFEID: "spiffe://other.org/x"}), true, true},
		{"of one trust domain, signed by the other's CA", other.Issue(t, certtest.Options{SPIFFEID: clientID}), false, false},
		{"of a trust domain without a bundle", ca.Issue(t, certtest.Options{SPIFFEID: "spiffe://third.org/x"}), false, false},
		{"of an unknown CA", strangers.Issue(t, certtest.Options{SPIFFEID: clientID}), false, false},
		{"without a SPIFFE ID", ca.Issue(t, certtest.Options{DNSNames: []string{"gw"}}), false, false},
		{"none", nil, false, true},
	} {
		for listener, want := range map[*Listener]bool{l: tt.required, optional: tt.optional} {
			_, err, _ := shake(t, listener.Config(), spiffeClient(t, tt.client))
			if got := err == nil; got != want {
				t.Errorf("a client with a certificate %s (optional: %t) is accepted: %t (%v), want %t", tt.name, listener == optional, got, err, want)
			}
		}
	}

	// The trust domain's CA is rotated: first both are in the bundle.
	next := certtest.NewCA(t, "example.org, next")
	agent.Trust(next)
	log.expect(t, "received SVID")
	later := next.Issue(t, certtest.Options{SPIFFEID: clientID})
	for _, client := range []*certtest.Pair{good, later} {
		if _, err, _ := shake(t, l.Config(), spiffeClient(t, client)); err != nil {
			t.Errorf("with both CAs in the bundle: %v", err)
		}
	}
	agent.Issue(t, relayID, next, nil)
	log.expect(t, "received SVID")
	if _, err, _ := shake(t, l.Config(), spiffeClient(t, later)); err != nil {
		t.Errorf("with the new CA: %v", err)
	}
	if _, err, _ := shake(t, l.Config(), spiffeClient(t, good)); err == nil {
		t.Error("a client of the CA that was taken away is accepted")
	}

	// The agent ends: the last SVID stays in use.
	agent.Stop()
	log.expect(t, `level=WARN msg="SPIFFE agent cannot be reached, its last SVID stays in use"`)
	if _, err, _ := shake(t, l.Config(), spiffeClient(t, later)); err != nil {
		t.Errorf("after the agent ended: %v", err)
	}
}

func TestNoSessionOutlivesTheBundleOfItsClient(t *testing.T) {
	t.Parallel()
	old, next := certtest.NewCA(t, "old"), certtest.NewCA(t, "next")
	agent, socket := certtest.NewAgent(), filepath.Join(t.TempDir(), "agent.sock")
	agent.Issue(t, relayID, old, nil)
	agent.Serve(t, socket)
	s, log := newStore(t)
	l, err := s.Listener(ListenerOptions{WorkloadAPI: "unix:" + socket})
	check(t, err)
	log.expect(t, "received SVID")
	config := l.Config()
	own := old.Issue(t, certtest.Options{SPIFFEID: clientID})
	client := spiffeClient(t, nil)
	client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own.TLS, nil }
	client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for _, resumed := range []bool{false, true} {
		if state, err, _ := shake(t, config, client); err != nil || state.DidResume != resumed {
			t.Errorf("resumed %t, %v, want %t", state.DidResume, err, resumed)
		}
	}
	agent.Issue(t, relayID, next, nil)
	log.expect(t, "received SVID")
	own = next.Issue(t, certtest.Options{SPIFFEID: clientID})
	if state, err, _ := shake(t, config, client); err != nil || state.DidResume {
		t.Errorf("with a new certificate and the old session: resumed %t, %v, want a full handshake", state.DidResume, err)
	}
}

func TestTheRelayKnowsAServerByItsSVID(t *testing.T) {
	t.Parallel()
	ca, other := certtest.NewCA(t, "example.org"), certtest.NewCA(t, "other.org")
	agent, socket := certtest.NewAgent(), filepath.Join(t.TempDir(), "agent.sock")
	s, log := newStore(t)
	toServer := func(id string) *tls.Config {
		c, err := s.Server(ServerOptions{WorkloadAPI: "unix:" + socket, Host: "127.0.0.1", ID: id})
		check(t, err)
		return c
	}
	server := func(ca *certtest.CA, o certtest.Options) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{ca.Issue(t, o).TLS}, ClientAuth: tls.RequireAnyClientCert}
	}
	istiod := certtest.Options{SPIFFEID: serverID}
	config := toServer(serverID)
	log.expect(t, "SPIFFE agent has sent no SVID")
	if _, _, err := shake(t, server(ca, istiod), config); err == nil || !strings.Contains(err.Error(), "no SVID from unix:"+socket+" yet") {
		t.Errorf("without an agent, the relay says %v", err)
	}
	own := agent.Issue(t, relayID, ca, map[string]*certtest.CA{"spiffe://other.org": other})
	agent.Serve(t, socket)
	log.expect(t, "received SVID")
	state, serverErr, clientErr := shake(t, server(ca, istiod), config)
	if serverErr != nil || clientErr != nil || !state.PeerCertificates[0].Equal(own.TLS.Leaf) {
		t.Errorf("the server says %v, the relay %v", serverErr, clientErr)
	}
	for _, tt := range []struct {
		name string
		id   string
		ca   *certtest.CA
		o    certtest.Options
		want string // in the error; empty for none
	}{
		{"another SPIFFE ID", serverID, ca, certtest.Options{SPIFFEID: clientID}, "the server is " + clientID + ", and not " + serverID},
		{"the SPIFFE ID, signed by another trust domain", serverID, other, istiod, "could not verify leaf certificate"},
		{"no SPIFFE ID, right host", serverID, ca, certtest.Loopback, "no URI SAN"},
		{"no server_id, another host", "", ca, istiod, "cannot validate certificate for 127.0.0.1"},
		{"no server_id, right host", "", ca, certtest.Options{SPIFFEID: serverID, IPs: certtest.Loopback.IPs}, ""},
	} {
		_, _, err := shake(t, server(tt.ca, tt.o), toServer(tt.id))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: the relay says %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestAnAgentThatRefusesTheRelayIsAskedAgain(t *testing.T) {
	t.Parallel()
	ca := certtest.NewCA(t, "example.org")
	agent, socket := certtest.NewAgent(), filepath.Join(t.TempDir(), "agent.sock")
	agent.Serve(t, socket) // it has no SVID for the relay
	s, log := newStore(t)
	_, err := s.Listener(ListenerOptions{WorkloadAPI: "unix:" + socket})
	check(t, err)
	log.expect(t, "no identity issued")
	agent.Issue(t, relayID, ca, nil)
	log.expect(t, "received SVID")
	if got := s.Statuses(); len(got) != 2 || got[0].Problem != "" || got[1].Role != RoleCA || !got[1].Expires.Equal(ca.Certificate.NotAfter) {
		t.Errorf("the statuses are %+v", got)
	}
}
