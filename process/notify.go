package process

import (
	"errors"
	"net"
	"os"
	"strings"
)

// States of the process for [Notify]. systemd: sd_notify(3).
const (
	NotifyReady    = "READY=1"
	NotifyStopping = "STOPPING=1"
	// NotifyReloading needs MONOTONIC_USEC beside it, and NotifyReady after it.
	NotifyReloading = "RELOADING=1"
)

// Notify sends states of the process to systemd, if systemd has started it and wants to know.
func Notify(states ...string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte(strings.Join(states, "\n")))
	return errors.Join(err, conn.Close())
}
