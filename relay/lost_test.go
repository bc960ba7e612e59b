package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/operator"
)

// breakSocket makes a listener's socket fail: it accepts no more connections, although no one has closed it.
func breakSocket(t *testing.T, l *listener) {
	t.Helper()
	tcp, ok := l.socket.Listener.(*net.TCPListener)
	if !ok {
		t.Fatalf("the socket is a %T", l.socket.Listener)
	}
	raw, err := tcp.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { err = syscall.Shutdown(int(fd), syscall.SHUT_RD) }), err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Streams of a lost listener stay open, and other listeners are not affected. The relay opens it again.
func TestAListenerWhoseSocketFails(t *testing.T) {
	r := startReload(t)
	second := freeAddress(t)
	config := strings.Replace(reloadConfig, "}]", `}, {address: "%[3]s"}]`, 1)
	r.mustReload(config, r.listen, r.plane.address, second)
	there := hold(t, connectTo(t, second), false, &corev3.Node{Id: "there"})
	there.awaitHas(t, "on the new listener", map[string]string{"m1": "first", "m2": "first"})
	r.everything = append(r.everything, there)
	lost := r.relay.openListeners()[1]
	func() {
		r.relay.reloading.Lock() // meanwhile it is not opened again by itself
		defer r.relay.reloading.Unlock()
		breakSocket(t, lost)
		await(t, "the listener is lost", func() bool { return lost.isLost() != nil })
		if got := r.relay.lostListeners()[0].Value; got != 1 {
			t.Errorf("%d listeners are lost, want 1", got)
		}
		if want := "listener " + second + " accepts no connections"; !hasProblem(r.relay, operator.SeverityError, want) {
			t.Errorf("the status lacks %q", want)
		}
		ready := httptest.NewRecorder()
		r.relay.admin.HTTP(r.relay.log, nil).Handler.ServeHTTP(ready, httptest.NewRequest(http.MethodGet, "http://localhost/readyz?verbose", nil))
		if want := "[-]listener/" + second + " accepts no connections"; ready.Code != http.StatusServiceUnavailable || !strings.Contains(ready.Body.String(), want) {
			t.Errorf("/readyz is %d, %q without %q", ready.Code, ready.Body, want)
		}
	}()
	next := startLabelledPlane(t, "second", "m1", "m2")
	r.mustReload(config, r.listen, next.address, second) // which opens it
	r.awaitLabel("on the other listener", "second")
	there.awaitHas(t, "on the listener that was lost", map[string]string{"m1": "second", "m2": "second"})
	after := hold(t, connectTo(t, second), false, &corev3.Node{Id: "after"})
	after.awaitHas(t, "on the listener that was opened again", map[string]string{"m1": "second", "m2": "second"})
	breakSocket(t, lost)
	await(t, "the listener is opened again by itself", func() bool {
		conn, err := net.Dial("tcp", second)
		if err != nil {
			return false
		}
		defer conn.Close()
		return lost.isLost() == nil
	})
	r.mustBeOpen("a listener was lost")
}

// While the relay is not ready, it also waits for authorities that a reload adds.
func TestReadinessWaitsForAuthoritiesThatAReloadAdds(t *testing.T) {
	t.Parallel()
	const first = "listeners: [{address: \"%s\"}]\nadmin: {address: \"127.0.0.1:0\", ready_timeout: 1h}\nauthorities:\n- {name: a, servers: [{address: \"%s\"}]}\n"
	nobody := freeAddress(t)
	r := &reloadTest{T: t, listen: freeAddress(t)}
	r.relay, _ = runRelay(t, fmt.Sprintf(first, r.listen, nobody), slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("missing: %q", r.relay.readiness.missingAll())
		}
	})
	other, plane := freeAddress(t), startLabelledPlane(t, "there", "m1")
	r.mustReload(first+"- {name: b, servers: [{address: \"%s\"}]}\n", r.listen, plane.address, other)
	await(t, "the first authority is ready, the second is tried", func() bool {
		missing := r.relay.readiness.missingAll()
		return len(missing) == 1 && strings.Contains(missing[0], `authority "b": no server takes a connection`)
	})
	if r.relay.readiness.isDone() {
		t.Error("the relay is ready without the second authority")
	}
	r.mustReload(first+"- {name: b, servers: [{address: \"%s\"}]}\n", r.listen, plane.address, plane.address)
	await(t, "it is ready", func() bool { return r.relay.readiness.isDone() })
}
