package interop

// Replacement of certificates, CAs and keys of tokens while clients have open streams and others connect.

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// rotating is a relay whose files are replaced, with the state of its clients.
type rotating struct {
	*relay
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

func (c *certifier) roots() []byte { return contentOf(c.t, filepath.Join(c.dir, "ca.pem")) }

// listener issues a certificate for a listener, and returns its files.
func (c *certifier) listener(name string) map[string][]byte {
	cert, key := c.issue(name, "", time.Now().Add(time.Hour))
	return map[string][]byte{"tls.crt": contentOf(c.t, cert), "tls.key": contentOf(c.t, key)}
}

// client returns of with a new certificate of a client.
func (c *certifier) client(of proof, name string) proof {
	of.Cert, of.Key = c.issue(name, "spiffe://example.org/shop", time.Now().Add(time.Hour))
	return of
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
	read := func() int { return strings.Count(r.logs.String(), `msg="read changed files" role=`+role) }
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

func startRotating(t *testing.T, p prover, front, clients, tokens *certifier) *rotating {
	t.Helper()
	r := &rotating{relay: &relay{}, t: t, open: p.open, files: &secretVolume{dir: t.TempDir(), files: map[string][]byte{}}, resources: t.TempDir()}
	first := front.listener("listener 1")
	first["clients.crt"], first["jwks.json"] = clients.roots(), contentOf(t, tokens.keys())
	r.files.update(t, first)
	r.serve()
	config := fmt.Sprintf(`
listeners:
  - address: 127.0.0.1:0
    tls: {cert_file: %[1]s, key_file: %[2]s, client_ca_file: %[3]s}
  - address: 127.0.0.1:0
    tls: {cert_file: %[1]s, key_file: %[2]s}
    jwt: {issuer: "https://issuer", audiences: [xds-relay], jwks_file: %[4]s, required: true}
authorities: [{name: files, directory: %[5]s}]
old_style_names: [{authority: files}]
`, r.files.path("tls.crt"), r.files.path("tls.key"), r.files.path("clients.crt"), r.files.path("jwks.json"), r.resources)
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.check(t) }) // runs after start's cleanup, which ends the relay
	cmd := exec.Command(binary, "serve", "--config", file)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=50")
	r.process = start(t, "the relay", cmd, syscall.SIGTERM)
	addresses := strings.Fields(r.logged(t, `(?s)msg="serving clients" address=(\S+.*msg="serving clients" address=\S+)`))
	r.mtls.Address, r.jwt.Address = addresses[0], strings.TrimPrefix(addresses[len(addresses)-1], "address=")
	return r
}

func TestRotationFailsNoHandshakeOfForeignClients(t *testing.T) {
	request, err := proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range provers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.prepared(t)
			front, front2 := newCertifier(t), newCertifier(t)
			clients, clients2 := newCertifier(t), newCertifier(t)
			tokens, tokens2 := newCertifier(t), newCertifier(t)
			tokens2.keyID = "2"
			r := startRotating(t, p, front, clients, tokens)

			// Clients trust both CAs of the listener.
			trusted := filepath.Join(t.TempDir(), "roots.pem")
			if err := os.WriteFile(trusted, append(front.roots(), front2.roots()...), 0o600); err != nil {
				t.Fatal(err)
			}
			r.mtls.CA, r.mtls.Request = trusted, hex.EncodeToString(request)
			r.jwt.CA, r.jwt.Request = r.mtls.CA, r.mtls.Request
			r.mtls, r.jwt.Token = clients.client(r.mtls, "shop 1"), tokens.token(time.Hour)
			r.streams = r.connect("at first", 3, func() {})

			r.replace("another certificate", "listener", front.listener("listener 2"))
			r.replace("a certificate of another CA", "listener", front2.listener("listener 3"))

			// The relay trusts each CA and key before clients use it, and stops trusting it when no client
			// uses it any more.
			r.replace("both CAs of clients", "ca", map[string][]byte{"clients.crt": append(clients.roots(), clients2.roots()...)})
			old := r.mtls
			r.mtls = clients2.client(r.mtls, "shop 2")
			r.connect("clients of another CA", 1, func() {})
			r.replace("the new CA of clients alone", "ca", map[string][]byte{"clients.crt": clients2.roots()})

			r.replace("both keys of tokens", "jwks", map[string][]byte{"jwks.json": keySet(tokens, tokens2)})
			oldToken := r.jwt
			r.jwt.Token = tokens2.token(time.Hour)
			r.connect("tokens of another key", 1, func() {})
			r.replace("the new key of tokens alone", "jwks", map[string][]byte{"jwks.json": keySet(tokens2)})

			if strings.Contains(r.logs.String(), "handshake failed") {
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
}
