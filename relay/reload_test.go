package relay

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
	"github.com/xds-relay/xds-relay/operator"
)

const xdstpX = "xdstp://a/envoy.config.cluster.v3.Cluster/x"

// reloadTest is a relay with a control plane, and a client of each form that has a wildcard, and one that has a name
// of authority a.
type reloadTest struct {
	*testing.T
	relay      *Relay
	plane      *labelledPlane
	listen     string
	delta      *holder
	sotw       *holder
	name       *holder
	everything []*holder
}

const reloadConfig = `
listeners: [{address: "%[1]s"}]
authorities: [{name: a, servers: [{address: "%[2]s"}]}]
old_style_names: [{authority: a}]
`

func startReload(t *testing.T) *reloadTest {
	t.Helper()
	r := &reloadTest{T: t, plane: startLabelledPlane(t, "first", "m1", "m2"), listen: freeAddress(t)}
	r.relay, _ = runRelay(t, fmt.Sprintf(reloadConfig, r.listen, r.plane.address), slog.New(slog.DiscardHandler))
	conn := connectTo(t, r.listen)
	r.delta = hold(t, conn, false, &corev3.Node{Id: "delta"})
	r.sotw = hold(t, conn, true, &corev3.Node{Id: "sotw"})
	r.name = hold(t, conn, false, &corev3.Node{Id: "name"}, xdstpX)
	r.everything = []*holder{r.delta, r.sotw, r.name}
	r.awaitLabel("at the start", "first")
	return r
}

// freeAddress returns an address on which no one listens. A socket is bound to it until the test ends, so that the
// kernel does not give the port to others that ask for any port: a relay with that address can listen there
// repeatedly.
func freeAddress(t testing.TB) string {
	t.Helper()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(socket) })
	// The sockets of package net also have it: then another one may be bound to the address while this one does not
	// listen.
	if err := syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*syscall.SockaddrInet4).Port))
}

// awaitLabel waits until all clients have what a control plane has.
func (r *reloadTest) awaitLabel(when, label string) {
	r.Helper()
	r.delta.awaitHas(r.T, when, map[string]string{"m1": label, "m2": label})
	r.sotw.awaitHas(r.T, when, map[string]string{"m1": label, "m2": label})
	r.name.awaitHas(r.T, when, map[string]string{xdstpX: label})
}

func (r *reloadTest) mustBeOpen(what string) {
	r.Helper()
	for _, h := range r.everything {
		h.mustBeOpen(r.T, what)
	}
}

// reload reloads a configuration.
func (r *reloadTest) reload(config string) error {
	r.Helper()
	cfg, err := configs.Parse("relay.yaml", []byte(config))
	if err != nil {
		r.Fatal(err)
	}
	return r.relay.Reload(r.Context(), cfg)
}

func (r *reloadTest) mustReload(format string, args ...any) {
	r.Helper()
	if err := r.reload(fmt.Sprintf(format, args...)); err != nil {
		r.Fatal(err)
	}
}

func TestAReloadOfTheSameConfigurationTouchesNothing(t *testing.T) {
	r := startReload(t)
	before := r.plane.opened()
	for range 3 {
		r.mustReload(reloadConfig+"# a comment\n", r.listen, r.plane.address)
	}
	after := hold(t, connectTo(t, r.listen), false, &corev3.Node{Id: "after"})
	after.awaitHas(t, "a client that comes later", map[string]string{"m1": "first", "m2": "first"})
	if n := r.plane.opened(); n != before {
		t.Errorf("%d streams to the control plane were opened, and %d before the reloads", n, before)
	}
	r.mustBeOpen("the same configuration")
}

// Clients keep what they have until the other server has answered.
func TestAnAuthorityGetsOtherServers(t *testing.T) {
	r := startReload(t)
	second := startLabelledPlane(t, "second", "m1", "m2")
	r.mustReload(reloadConfig, r.listen, second.address)
	r.awaitLabel("from the other server", "second")
	r.mustBeOpen("another server")
	r.mustReload(reloadConfig, r.listen, freeAddress(t)) // nobody is there
	r.mustReload(reloadConfig, r.listen, r.plane.address)
	r.awaitLabel("from the first server again", "first")
	r.mustBeOpen("the first server again")
}

func TestAnAuthorityThatIsGoneTakesNothingAway(t *testing.T) {
	r := startReload(t)
	r.mustReload(strings.NewReplacer("name: a", "name: b", "authority: a", "authority: b").Replace(reloadConfig), r.listen, r.plane.address)
	r.name.await(t, "an error for the name", func() bool { return len(r.name.errors) > 0 })
	r.mustBeOpen("its authority is gone")
	if has, _, _, _ := r.name.state(); has[xdstpX] != "first" {
		t.Errorf("the client has %v", has)
	}
}

func TestListenersComeAndGo(t *testing.T) {
	r := startReload(t)
	second := freeAddress(t)
	r.mustReload(strings.Replace(reloadConfig, "}]", `}, {address: "%[3]s"}]`, 1)+"drain: {time: 0s}", r.listen, r.plane.address, second)
	there := hold(t, connectTo(t, second), false, &corev3.Node{Id: "there"})
	there.awaitHas(t, "on the new listener", map[string]string{"m1": "first", "m2": "first"})
	r.mustReload(reloadConfig+"drain: {time: 0s}", r.listen, r.plane.address)
	there.await(t, "the stream of the listener that is gone ends", func() bool { return there.ended != nil })
	r.mustBeOpen("another listener came and went")
	if conn, err := net.Dial("tcp", second); err == nil {
		conn.Close()
		t.Error("the listener that is gone accepts connections")
	}
}

// The socket and the streams stay open, and new connections use the new settings.
func TestAListenerGetsTLS(t *testing.T) {
	r := startReload(t)
	dir, ca := t.TempDir(), certtest.NewCA(t, "ca")
	pair := ca.Issue(t, certtest.Loopback)
	keys := fmt.Sprintf(`, tls: {cert_file: "%s", key_file: "%s"}`, writeFile(t, dir, "cert.pem", pair.Cert), writeFile(t, dir, "key.pem", pair.Key))
	r.mustReload(strings.Replace(reloadConfig, "}]", "%[3]s}]", 1), r.listen, r.plane.address, keys)
	if statuses := r.relay.credentials.Statuses(); len(statuses) != 1 {
		t.Errorf("credentials in use: %+v", statuses)
	}
	trusted := tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}
	secure, err := tls.Dial("tcp", r.listen, &trusted)
	if err != nil {
		t.Fatalf("a new connection: %v", err)
	}
	secure.Close()
	second := startLabelledPlane(t, "second", "m1", "m2")
	r.mustReload(strings.Replace(reloadConfig, "}]", "%[3]s}]", 1), r.listen, second.address, keys)
	r.awaitLabel("streams from before TLS", "second")
	r.mustReload(reloadConfig, r.listen, second.address)
	after := hold(t, connectTo(t, r.listen), false, &corev3.Node{Id: "after"})
	after.awaitHas(t, "without TLS again", map[string]string{"m1": "second", "m2": "second"})
	r.mustBeOpen("a listener that changed")
	await(t, "credentials that nobody uses are not read any more", func() bool { return len(r.relay.credentials.Statuses()) == 0 })
}

// Limits on streams apply to the next stream, also on open connections.
func TestALimitHoldsForTheNextStream(t *testing.T) {
	r := startReload(t)
	conn := connectTo(t, r.listen)
	hold(t, conn, false, &corev3.Node{Id: "one"}).awaitHas(t, "a fourth stream", map[string]string{"m1": "first", "m2": "first"})
	r.mustReload(strings.Replace(reloadConfig, "}]", ", limits: {streams: 4}}]", 1), r.listen, r.plane.address)
	one := hold(t, conn, false, &corev3.Node{Id: "one too many"})
	one.await(t, "more streams than the new limit", func() bool { return one.ended != nil })
	r.mustBeOpen("a limit that changed")
}

// All errors are returned at once, each with its place, and nothing changes.
func TestAConfigurationThatCannotBeLoaded(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	alsoTaken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer alsoTaken.Close()
	missing := filepath.Join(t.TempDir(), "missing")
	for _, tt := range []struct {
		name   string
		config string
		want   []string
	}{
		{"an address that is taken", `
listeners:
  - address: "%[1]s"
  - address: "` + taken.Addr().String() + `"
authorities: [{name: a, servers: [{address: "%[2]s"}]}]
`, []string{"relay.yaml:4:5: listeners[1].address: listen tcp " + taken.Addr().String() + ": bind: address already in use"}},
		{"files that are missing, and an admin listener", `
listeners:
  - address: "%[1]s"
    tls: {cert_file: "` + missing + `", key_file: "` + missing + `"}
authorities: [{name: a, servers: [{address: "%[2]s"}]}]
store: {path: "` + missing + `/store.db"}
`, []string{"relay.yaml:4:", "relay.yaml:6:", "no such file or directory"}},
		{"two addresses that are taken", `
listeners:
  - address: "` + taken.Addr().String() + `"
admin: {address: "` + alsoTaken.Addr().String() + `"}
authorities: [{name: a, servers: [{address: "%[2]s"}]}]
`, []string{"relay.yaml:3:", "relay.yaml:4:"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := startReload(t)
			hash, opened := r.relay.Hash(), r.plane.opened()
			err := r.reload(fmt.Sprintf(tt.config, r.listen, r.plane.address))
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %v, want in it %q", err, want)
				}
			}
			status := r.relay.configStatus()
			if status.Hash != hash || status.Failures != 1 || status.Problem == "" {
				t.Errorf("the status is %+v, the hash was %s", status, hash)
			}
			after := hold(t, connectTo(t, r.listen), true, &corev3.Node{Id: "after"})
			after.awaitHas(t, "the old configuration goes on", map[string]string{"m1": "first", "m2": "first"})
			if n := r.plane.opened(); n != opened {
				t.Errorf("%d streams to the control plane, and %d before", n, opened)
			}
			r.mustBeOpen("the old configuration goes on")
			r.mustReload(reloadConfig+"node: {id: other}", r.listen, r.plane.address)
			if status := r.relay.configStatus(); status.Problem != "" || status.Hash == hash {
				t.Errorf("after a success the status is %+v", status)
			}
		})
	}
}

func TestNoReloadWhileTheRelayEnds(t *testing.T) {
	r := startReload(t)
	r.relay.noMoreReloads()
	if err := r.reload(fmt.Sprintf(reloadConfig, r.listen, r.plane.address)); !errors.Is(err, operator.ErrShuttingDown) {
		t.Errorf("the error is %v", err)
	}
}
