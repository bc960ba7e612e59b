package configs

// This file is the keys of `admin`, and who can reach that listener.

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Admin is the operator's listener.
type Admin struct {
	// Where the operator's listener is: host:port, or unix:/path for a unix socket. A host that is not loopback needs tls.
	// Any other host needs `tls`, because the pages show what the relay serves to whom.
	Address string `yaml:"address" required:"true"`
	// The permissions of the unix socket: who may connect.
	Mode FileMode `yaml:"mode" default:"0600"`
	// How long after its start the relay waits for all authorities before it reports that it is ready,
	// on `/readyz`, in gRPC health and to systemd. It waits for an authority until a server of it
	// accepts a connection or its directory has been read, unless the relay has stored resources of it
	// (drain.md). 0s does not wait.
	ReadyTimeout time.Duration `yaml:"ready_timeout" default:"30s" allow:"zero"`
	// TLS for the operator's listener, with client certificates. Files are PEM, and the relay
	// reads them again when they change.
	TLS *AdminTLS `yaml:"tls" absent:"plaintext"` // nil for plaintext
}

// AdminTLS is TLS towards operators. They always need a certificate. Files are PEM, and
// relative to the folder in which the relay is started.
type AdminTLS struct {
	// The listener's certificate.
	CertFile string `yaml:"cert_file" required:"true"`
	// The key of `cert_file`.
	KeyFile string `yaml:"key_file" required:"true"`
	// The roots of the operators' certificates. Operators need a certificate that one of these roots has
	// signed.
	ClientCAFile string `yaml:"client_ca_file" required:"true"`
}

// The default modes of the admin listener's unix socket, and of those for clients.
const (
	defaultMode         FileMode = 0o600
	defaultListenerMode FileMode = 0o660
)

// socketMode refuses a mode for the listener at path if its address is not a unix socket.
func (k *checker) socketMode(path, address string, mode, byDefault FileMode) {
	if _, unix := UnixPath(address); !unix && mode != byDefault && !k.isUnusable(path+".address") {
		k.fail(path+".mode", "is for unix sockets (want no such key, or address: unix:/path)")
	}
}

// UnixPath returns the path of an address of the form unix:PATH.
func UnixPath(address string) (path string, ok bool) { return strings.CutPrefix(address, "unix:") }

// maxUnixPath is the longest path that Linux accepts for a unix socket, in bytes.
const maxUnixPath = 107

func checkUnixPath(address string) error {
	path, _ := UnixPath(address)
	switch {
	case path == "":
		return fmt.Errorf("%q has no path (want unix:/path)", address)
	case strings.HasPrefix(path, "@"):
		return fmt.Errorf("%q is an abstract socket, to which everybody on the host may connect (want unix:/path)", address)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%q is not a path (want unix:/path)", address)
	case len(path) > maxUnixPath:
		return fmt.Errorf("%q has a path of %d bytes (want at most %d)", address, len(path), maxUnixPath)
	}
	return nil
}

// IsLoopback reports whether only this host can reach the address, which is host:port: its
// host is in 127.0.0.0/8, ::1 or localhost. An empty host is all interfaces.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && isLoopbackHost(host)
}

var errExposed = errors.New("other hosts can reach it, and there is no admin.tls, so anyone there could read what the relay serves to whom (want a loopback address such as 127.0.0.1:19000, unix:/path, or admin.tls with cert_file, key_file and client_ca_file)")

// Exposed returns an error if other hosts can reach address, the admin listener's, without a
// certificate.
func (a *Admin) Exposed(address string) error {
	if _, unix := UnixPath(address); unix || a.TLS != nil || IsLoopback(address) {
		return nil
	}
	return fmt.Errorf("%q: %w", address, errExposed)
}

func (k *checker) admin(a *Admin, taken map[string]string) {
	if k.listenAddress("admin.address", a.Address, taken) && !k.isUnusable("admin.tls") {
		if err := a.Exposed(a.Address); err != nil {
			k.fail("admin.address", "%w", err)
		}
	}
	k.socketMode("admin", a.Address, a.Mode, defaultMode)
	if t := a.TLS; t != nil {
		k.present("admin.tls.cert_file", t.CertFile, "want the file of the listener's certificate")
		k.present("admin.tls.key_file", t.KeyFile, "want the file of the certificate's key")
		k.present("admin.tls.client_ca_file", t.ClientCAFile, "want the file of the roots of the operators' certificates: without one, anyone could read what the relay serves to whom")
	}
}
