package sockets

// Unix sockets.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"github.com/xds-relay/xds-relay/configs"
)

// openSocket opens the socket of an address, which is host:port or unix:PATH, and returns its address in the same
// form. mode is the permissions of a unix socket. control, if not nil, is net.ListenConfig.Control of a TCP socket.
func openSocket(ctx context.Context, address string, mode configs.FileMode, control controlFunc) (_ net.Listener, opened string, _ error) {
	if path, unix := configs.UnixPath(address); unix {
		socket, err := openUnixSocket(ctx, path, mode)
		return socket, address, err
	}
	lc := net.ListenConfig{Control: control}
	socket, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, "", err
	}
	return socket, socket.Addr().String(), nil
}

func openUnixSocket(ctx context.Context, path string, mode configs.FileMode) (net.Listener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	permissions := os.FileMode(mode)
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { restrict(int(fd), permissions) })
	}}
	socket, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, permissions); err != nil { // umask may have removed some
		_ = socket.Close()
		return nil, err
	}
	return socket, nil
}

// removeStale removes the socket of a relay that did not shut down. No process accepts its connections.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket (want a path that is free)", path)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("%s is the socket of another process (want a path that is free)", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
