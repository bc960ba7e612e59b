package identity_test

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/identity"
)

// wrapped is the address of a connection that somebody has wrapped.
type wrapped struct{ net.Addr }

func (w wrapped) Unwrap() net.Addr { return w.Addr }

func TestTheKernelSaysWhoConnectsToAUnixSocket(t *testing.T) {
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	client, err := net.Dial("unix", socket.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := socket.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	address, own := identity.UnixAddrOf(conn), conn.LocalAddr()
	_ = conn.Close()
	id := identity.Proof{Peer: &peer.Peer{Addr: wrapped{address}, LocalAddr: own}}.Connection()
	if !id.Local {
		t.Error("it is not of the same machine")
	}
	if runtime.GOOS != "linux" {
		if id.Source != identity.None || id.UID != nil {
			t.Errorf("got %+v", id)
		}
		return
	}
	if id.Source != identity.Unix || id.UID == nil || int(*id.UID) != os.Getuid() {
		t.Errorf("got %+v, want the uid %d", id, os.Getuid())
	}
	if after := identity.UnixAddrOf(conn); after.Known {
		t.Errorf("a closed connection is of the uid %d", after.UID)
	}
}
