package process

import (
	"net"
	"path/filepath"
	"testing"
)

func TestNotifySendsToSystemdsSocket(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify(NotifyReady); err != nil {
		t.Errorf("without a socket: %v", err)
	}
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	if err := Notify(NotifyStopping, "EXTEND_TIMEOUT_USEC=1"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := socket.Read(b)
	if got, want := string(b[:n]), "STOPPING=1\nEXTEND_TIMEOUT_USEC=1"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	t.Setenv("NOTIFY_SOCKET", path+"-gone")
	if err := Notify(NotifyReady); err == nil {
		t.Error("a socket that is not there is no error")
	}
}
