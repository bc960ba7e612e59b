package process

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// States of the process for [Notify]. systemd: sd_notify(3).
const (
	NotifyReady    = "READY=1"
	NotifyStopping = "STOPPING=1"
	// NotifyReloading needs MONOTONIC_USEC with it, and NotifyReady after it.
	NotifyReloading = "RELOADING=1"
)

// NotifyTakes returns the state that asks systemd to wait that long, from now on, for the process to start or stop. It has
// an effect only if the unit's own timeout ends earlier.
func NotifyTakes(d time.Duration) string {
	return fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds())
}

// Notify sends states of the process to systemd. (That of go-systemd waits without a bound for systemd to read.) It does nothing unless the unit asks for notifications.
func Notify(states ...string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	// systemd may be slow to read, and the relay has to end.
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return errors.Join(err, conn.Close())
	}
	_, err = conn.Write([]byte(strings.Join(states, "\n")))
	return errors.Join(err, conn.Close())
}
