//go:build !linux

package downstream

import (
	"net"
	"time"
)

type readyReader struct{}

func (readyReader) init(net.Conn) {}

func setUserTimeout(net.Conn, time.Duration) {}
