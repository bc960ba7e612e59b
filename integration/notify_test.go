package integration

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The relay notifies systemd when it is ready, when it reloads, and when it stops, with the time that it
// needs to stop.
func TestSystemdIsNotified(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	cp := startControlPlane(t, delta)
	cp.stop()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(relayTo(cp.address, "delta")+"drain: {delay: 1s, time: 2s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	next := func() []string {
		t.Helper()
		b := make([]byte, 1000)
		if err := socket.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		n, err := socket.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(b[:n]), "\n")
	}
	r := runRelay(t, "serve", "--config", file)
	cp.start()
	r.awaitLog(t, `msg=(ready)`)
	if got := next(); !slices.Equal(got, []string{"READY=1"}) {
		t.Errorf("at the start systemd received %q", got)
	}
	for _, config := range []string{relayTo(cp.address, "delta") + "drain: {delay: 1s, time: 2s}\n", "unknown: key\n"} {
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if got := next(); len(got) != 2 || got[0] != "RELOADING=1" || !strings.HasPrefix(got[1], "MONOTONIC_USEC=") || len(got[1]) < len("MONOTONIC_USEC=1") {
			t.Errorf("at a reload systemd received %q", got)
		}
		if got := next(); !slices.Equal(got, []string{"READY=1"}) {
			t.Errorf("after a reload systemd received %q", got)
		}
	}
	r.end(t, syscall.SIGTERM)
	if got := next(); !slices.Equal(got, []string{"STOPPING=1"}) {
		t.Errorf("at the end systemd received %q", got)
	}
	if got := next(); !slices.Equal(got, []string{"EXTEND_TIMEOUT_USEC=18000000"}) {
		t.Errorf("for the drain systemd received %q", got)
	}
}
