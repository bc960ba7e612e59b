package relay

// Reloads that open addresses which the previous configuration has open.

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/internal/sockets"
)

// leavingTest is a relay with a listener that stays, and another one that changes.
type leavingTest struct{ *reloadTest }

func startLeaving(t *testing.T) *leavingTest { return &leavingTest{startReload(t)} }

// config returns a configuration with further listeners, and an admin listener, if that is not "".
func (r *leavingTest) config(admin string, listeners ...string) string {
	config := fmt.Sprintf(reloadConfig+"drain: {time: 0s}\n", r.listen, r.plane.address)
	for _, l := range listeners {
		config = strings.Replace(config, "}]", fmt.Sprintf(`}, {address: "%s"}]`, l), 1)
	}
	if admin != "" {
		config += fmt.Sprintf("admin: {address: \"%s\"}\n", admin)
	}
	return config
}

// serves checks that a listener serves a client, and returns it.
func (r *leavingTest) serves(address string) *holder {
	r.Helper()
	h := hold(r.T, connectTo(r.T, address), false, &corev3.Node{Id: "client of " + address})
	h.awaitHas(r.T, address, map[string]string{"m1": "first", "m2": "first"})
	return h
}

func (r *leavingTest) serveOperator(address string) {
	r.Helper()
	if got := r.relay.AdminAddress(); got != address {
		r.Errorf("the admin listener is on %q, want %q", got, address)
	}
	if status, _ := ask(r.T, r.relay, "/healthz"); status != http.StatusOK {
		r.Errorf("the admin listener answers %d", status)
	}
}

func (r *leavingTest) mustLoad(config string) {
	r.Helper()
	if err := r.reload(config); err != nil {
		r.Fatalf("%v\n%s", err, config)
	}
}

// A listener gets another address on the same port. Only the streams of the listener that is gone end.
func TestAListenerGetsAnotherAddressOnItsPort(t *testing.T) {
	r := startLeaving(t)
	local := freeAddress(t)
	_, port, err := net.SplitHostPort(local)
	if err != nil {
		t.Fatal(err)
	}
	everywhere := "0.0.0.0:" + port
	r.mustLoad(r.config("", everywhere))
	for _, next := range []string{local, everywhere, local} {
		before := r.serves(local)
		r.mustLoad(r.config("", next))
		before.await(t, "the stream of the listener that is gone ends", func() bool { return before.ended != nil })
		r.serves(local)
	}
	if addresses := r.relay.Addresses(); !slices.Equal(addresses, []string{r.listen, local}) {
		t.Errorf("the listeners are on %v", addresses)
	}
	// No other process can use the port.
	if other, err := net.Listen("tcp", everywhere); err == nil {
		other.Close()
		t.Error("another socket has got the port")
	}
	r.mustBeOpen("another listener changed")
}

// If the other address is not available, nothing changes.
func TestAListenerKeepsItsAddressIfTheOtherCannotBeHad(t *testing.T) {
	r := startLeaving(t)
	local := freeAddress(t)
	_, port, _ := net.SplitHostPort(local)
	r.mustLoad(r.config("", local))
	before := r.serves(local)
	taken, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for range 2 {
		if err := r.reload(r.config("", "0.0.0.0:"+port)); err == nil || !strings.Contains(err.Error(), "listeners[1].address: listen tcp 0.0.0.0:"+port+": bind: address already in use") {
			t.Errorf("the error is %v", err)
		}
		r.serves(local)
	}
	// Both addresses at once are not available, in any order.
	for _, both := range [][]string{{local, "0.0.0.0:" + port}, {"0.0.0.0:" + port, local}} {
		taken.Close()
		if err := r.reload(r.config("", both...)); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("the error of both is %v", err)
		}
	}
	r.mustLoad(r.config(""))
	before.await(t, "its listener is gone", func() bool { return before.ended != nil })
	r.mustLoad(r.config("", "0.0.0.0:"+port))
	if err := r.reload(r.config(local)); err != nil { // the admin listener, on that port
		t.Fatal(err)
	}
	r.serveOperator(local)
	r.mustBeOpen("another listener changed")
}

// An admin listener and a clients' listener swap their ports, at once and for good.
func TestAnAdminListenerAndAnotherSwapTheirPorts(t *testing.T) {
	r := startLeaving(t)
	one, other := freeAddress(t), freeAddress(t)
	r.mustLoad(r.config(one, other))
	for range 3 {
		r.serveOperator(one)
		before := r.serves(other)
		opened := socketsOf(r.relay)
		bad := strings.Replace(r.config(other, one), "drain", "store: {path: /nowhere/at/all/store.db}\ndrain", 1)
		if err := r.reload(bad); err == nil {
			t.Fatal("a configuration that cannot be loaded was loaded")
		}
		r.serveOperator(one)
		r.serves(other)
		r.mustLoad(r.config(other, one))
		if after := socketsOf(r.relay); !sameSockets(opened, after) {
			t.Error("a socket was closed and opened again")
		}
		before.await(t, "the stream of the listener that is gone ends", func() bool { return before.ended != nil })
		one, other = other, one
	}
	r.serveOperator(one)
	r.serves(other)
	r.mustLoad(r.config(other)) // in place of the listener, and that without a successor
	r.serveOperator(other)
	r.mustLoad(r.config("", other))
	r.serves(other)
	r.mustBeOpen("others swapped their ports")
}

// sockets returns the open sockets of a relay.
func socketsOf(r *Relay) (all []*sockets.Socket) {
	for _, l := range r.openListeners() {
		all = append(all, l.socket)
	}
	if o := r.theOperator(); o != nil {
		all = append(all, o.sockets)
	}
	return all
}

func sameSockets(a, b []*sockets.Socket) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(s *sockets.Socket) bool { return !slices.Contains(b, s) })
}

// A unix socket gets another mode, and stays open. The same holds if the admin listener takes it over.
func TestTheModeOfAUnixSocketIsReloaded(t *testing.T) {
	r := startLeaving(t)
	path := filepath.Join(t.TempDir(), "s")
	mode := func(want fs.FileMode) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("the mode of the socket is %o, want %o", got, want)
		}
	}
	with := func(mode string) string {
		return strings.Replace(r.config("", "unix:"+path), path+`"`, path+`", mode: "`+mode+`"`, 1)
	}
	r.mustLoad(with("0600"))
	mode(0o600)
	there := r.serves("unix:" + path)
	r.everything = append(r.everything, there)
	for _, is := range []struct {
		text string
		mode fs.FileMode
	}{{"0660", 0o660}, {"0666", 0o666}, {"0600", 0o600}} {
		r.mustLoad(with(is.text))
		mode(is.mode)
	}
	r.serves("unix:" + path)
	r.mustBeOpen("the mode of a socket changed")
	r.everything = r.everything[:len(r.everything)-1]
	r.mustLoad(r.config("unix:"+path) + "# of the operator\n")
	mode(0o600)
	r.mustLoad(strings.Replace(r.config("unix:"+path), path+`"`, path+`", mode: "0660"`, 1))
	mode(0o660)
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}, DisableKeepAlives: true}}
	resp, err := client.Get("http://localhost/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	r.mustLoad(with("0640"))
	mode(0o640)
	r.serves("unix:" + path)
	r.mustBeOpen("a socket went from one listener to another")
}

// If the socket of the admin listener fails, no connection ends: the metric counts it, /readyz reports it over open
// connections, and it is opened again, by a reload or automatically.
func TestAnAdminListenerWhoseSocketFails(t *testing.T) {
	r := startLeaving(t)
	admin := freeAddress(t)
	r.mustLoad(r.config(admin))
	r.serveOperator(admin)
	lost := func() bool { return r.relay.lostOperator() != nil }
	// fail breaks the socket, and calls then before it is opened again.
	fail := func(then func()) {
		t.Helper()
		r.relay.reloading.Lock()
		defer r.relay.reloading.Unlock()
		breakSocket(t, &listener{socket: r.relay.theOperator().sockets})
		await(t, "the admin listener is lost", lost)
		then()
	}
	fail(func() {
		if got := r.relay.lostListeners()[0].Value; got != 1 {
			t.Errorf("%d listeners are lost, want 1", got)
		}
		ready := httptest.NewRecorder()
		r.relay.admin.HTTP(r.relay.log, nil).Handler.ServeHTTP(ready, httptest.NewRequest(http.MethodGet, "http://localhost/readyz?verbose", nil))
		if want := "[-]listener/" + admin + " accepts no connections"; ready.Code != http.StatusServiceUnavailable || !strings.Contains(ready.Body.String(), want) {
			t.Errorf("/readyz is %d, %q without %q", ready.Code, ready.Body, want)
		}
	})
	await(t, "the admin listener is opened again by itself", func() bool { return !lost() })
	r.serveOperator(admin)
	fail(func() {})
	r.mustLoad(r.config(admin) + "node: {id: other}\n")
	r.serveOperator(admin)
	var taken net.Listener
	fail(func() {
		var err error
		if taken, err = net.Listen("tcp", admin); err != nil {
			t.Fatal(err)
		}
	})
	r.mustLoad(r.config(admin) + "node: {id: another}\n") // does not fail for that
	if !lost() {
		t.Error("the admin listener is open on an address that another process has")
	}
	taken.Close()
	await(t, "it is opened again", func() bool { return !lost() })
	r.serveOperator(admin)
	if got := r.relay.lostListeners()[0].Value; got != 0 {
		t.Errorf("%d listeners are lost, want 0", got)
	}
	r.serves(r.listen)
	fail(func() {})
	r.mustLoad(r.config("")) // and nobody opens it any more
	r.mustBeOpen("the admin listener was lost")
}
