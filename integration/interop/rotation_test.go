package interop

// Replacement of certificates, CAs and keys of tokens while clients have open streams and others connect.

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// rotating is a relay whose files are replaced, with the state of its clients.
type rotating struct {
	relay      *peers.Relay
	t          *testing.T
	open       func(testing.TB, proof) <-chan event
	files      *secretVolume
	resources  string
	mtls, jwt  proof
	versions   int
	streams    []<-chan event // the streams that stay open
	handshakes int
}

// secretVolume imitates a Secret that Kubernetes has mounted. Its files are symlinks into ..data, which is
// itself a symlink. An update replaces ..data.
type secretVolume struct {
	dir        string
	files      map[string][]byte
	generation int
}

func (v *secretVolume) path(name string) string { return filepath.Join(v.dir, name) }

// update adds or replaces the files in the map and keeps all others.
func (v *secretVolume) update(t testing.TB, files map[string][]byte) {
	t.Helper()
	v.generation++
	data := fmt.Sprint("..", v.generation)
	errs := []error{os.Mkdir(v.path(data), 0o700)}
	for name, content := range files {
		if _, known := v.files[name]; !known {
			errs = append(errs, os.Symlink(filepath.Join("..data", name), v.path(name)))
		}
		v.files[name] = content
	}
	for name, content := range v.files {
		errs = append(errs, os.WriteFile(filepath.Join(v.path(data), name), content, 0o600))
	}
	errs = append(errs, os.Symlink(data, v.path("..new")), os.Rename(v.path("..new"), v.path("..data")))
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func contentOf(t testing.TB, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// certificate issues a certificate for the relay's listeners, and returns its files.
func (r *rotating) certificate(c *peers.Certifier, name string) map[string][]byte {
	cert, key := c.Issue(name, "", time.Now().Add(time.Hour), peers.Host(r.mtls.Address), peers.Host(r.jwt.Address))
	return map[string][]byte{"tls.crt": contentOf(r.t, cert), "tls.key": contentOf(r.t, key)}
}

// withClient returns a proof with a new certificate of a client.
func withClient(p proof, c *peers.Certifier, name string) proof {
	p.Cert, p.Key = c.Issue(name, "spiffe://example.org/shop", time.Now().Add(time.Hour))
	return p
}

// serve changes the cluster that the relay serves.
func (r *rotating) serve() {
	r.t.Helper()
	r.versions++
	content := fmt.Sprintf(`[{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "shop", "connect_timeout": "%ds"}]`, r.versions)
	next := filepath.Join(r.t.TempDir(), "next")
	if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(r.resources, "clusters.json")); err != nil {
		r.t.Fatal(err)
	}
}

// connect starts n clients of each of mtls and jwt, calls while, and checks that each client receives a
// response.
func (r *rotating) connect(what string, n int, while func()) (streams []<-chan event) {
	r.t.Helper()
	for range n {
		for _, p := range []proof{r.mtls, r.jwt} {
			streams = append(streams, r.open(r.t, p))
		}
	}
	while()
	for _, s := range streams {
		if e := await(r.t, s); e.Received == 0 {
			r.t.Errorf("%s: a client received %+v, want a response", what, e)
		}
	}
	r.handshakes += len(streams)
	return streams
}

// replace replaces files while clients connect, and waits until the relay has read them.
func (r *rotating) replace(what, role string, files map[string][]byte) {
	r.t.Helper()
	read := func() int { return r.relay.Logs().Count(`msg="read changed files" role=` + role) }
	before := read()
	r.connect(what+", meanwhile", 2, func() { r.files.update(r.t, files) })
	eventually(r.t, "the relay has read "+what, func() error {
		if read() == before {
			return fmt.Errorf("it has not read them")
		}
		return nil
	})
	r.connect(what, 1, func() {})
}

func startRotating(t *testing.T, p prover, front, clients, tokens *peers.Certifier) *rotating {
	t.Helper()
	r := &rotating{t: t, open: p.open, files: &secretVolume{dir: t.TempDir(), files: map[string][]byte{}}, resources: t.TempDir()}
	r.mtls.Address, r.jwt.Address = peers.Address(t), peers.Address(t)
	first := r.certificate(front, "listener 1")
	first["clients.crt"], first["jwks.json"] = clients.Roots(), contentOf(t, tokens.Keys())
	r.files.update(t, first)
	r.serve()
	r.relay = peers.StartRelay(t, guard{
		mtls: r.mtls.Address, jwt: r.jwt.Address, resources: r.resources,
		cert: r.files.path("tls.crt"), key: r.files.path("tls.key"), clients: r.files.path("clients.crt"), keys: r.files.path("jwks.json"),
	}.config())
	return r
}

func TestRotationFailsNoHandshakeOfForeignClients(t *testing.T) {
	withEachProver(t, func(t *testing.T, p prover, request string) {
		front, front2 := peers.NewCertifier(t), peers.NewCertifier(t)
		clients, clients2 := peers.NewCertifier(t), peers.NewCertifier(t)
		tokens, tokens2 := peers.NewCertifier(t), peers.NewCertifier(t)
		tokens2.KeyID = "2"
		r := startRotating(t, p, front, clients, tokens)

		// Clients trust both CAs of the listener.
		trusted := filepath.Join(t.TempDir(), "roots.pem")
		if err := os.WriteFile(trusted, append(front.Roots(), front2.Roots()...), 0o600); err != nil {
			t.Fatal(err)
		}
		r.mtls.CA, r.mtls.Request = trusted, request
		r.jwt.CA, r.jwt.Request = r.mtls.CA, r.mtls.Request
		r.mtls, r.jwt.Token = withClient(r.mtls, clients, "shop 1"), tokens.Token(time.Hour)
		r.streams = r.connect("at first", 3, func() {})

		r.replace("another certificate", "listener", r.certificate(front, "listener 2"))
		r.replace("a certificate of another CA", "listener", r.certificate(front2, "listener 3"))

		// The relay trusts each CA and key before clients use it, and stops trusting it when no client
		// uses it any more.
		r.replace("both CAs of clients", "ca", map[string][]byte{"clients.crt": append(clients.Roots(), clients2.Roots()...)})
		old := r.mtls
		r.mtls = withClient(r.mtls, clients2, "shop 2")
		r.connect("clients of another CA", 1, func() {})
		r.replace("the new CA of clients alone", "ca", map[string][]byte{"clients.crt": clients2.Roots()})

		r.replace("both keys of tokens", "jwks", map[string][]byte{"jwks.json": peers.KeySet(tokens, tokens2)})
		oldToken := r.jwt
		r.jwt.Token = tokens2.Token(time.Hour)
		r.connect("tokens of another key", 1, func() {})
		r.replace("the new key of tokens alone", "jwks", map[string][]byte{"jwks.json": peers.KeySet(tokens2)})

		if r.relay.Logs().Count("handshake failed") > 0 {
			t.Errorf("the relay has logged a failed handshake")
		}
		r.serve()
		for _, s := range r.streams {
			if e := await(t, s); e.Received == 0 {
				t.Errorf("an open stream received %+v, want a response", e)
			}
		}
		t.Logf("%d handshakes, %d streams that stayed open", r.handshakes, len(r.streams))

		// The relay refuses certificates of the old CA and tokens of the old key.
		if e := await(t, p.open(t, old)); e.Ended != codes.Unavailable {
			t.Errorf("a client of the old CA received %+v, want UNAVAILABLE", e)
		}
		if e := await(t, p.open(t, oldToken)); e.Ended != codes.Unauthenticated {
			t.Errorf("a client with a token of the old key received %+v, want UNAUTHENTICATED", e)
		}
	})
}
