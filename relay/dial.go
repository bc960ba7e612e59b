package relay

import (
	"crypto/tls"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/upstream"
)

// Connections to servers.

// connection is a connection to a server, for gRPC or for REST. Scopes whose servers are at
// the same place share it.
type connection interface {
	grpc.ClientConnInterface
	io.Closer
}

// place identifies a connection: it is the configuration of a server without the keys that
// concern single streams.
type place struct {
	configs.Server
	tls    configs.ServerTLS // Server.TLS, by value, if secure
	secure bool
}

func placeOf(s configs.Server) place {
	p := place{Server: s, secure: s.TLS != nil}
	if p.secure {
		p.tls = *s.TLS
	}
	p.TLS, p.Aggregated, p.Globs, p.Backoff, p.MaxRequestBytes = nil, false, false, configs.Backoff{}, 0
	if s.Protocol != configs.ProtocolREST {
		p.Protocol = ""
	}
	return p
}

// dial returns the connection to a server. It connects when it is first used. makeRoom is upstream.DialOptions.MakeRoom.
func dial(s configs.Server, makeRoom func() bool) (connection, error) {
	var config *tls.Config
	if s.TLS != nil {
		var err error
		if config, err = s.TLS.Load(); err != nil {
			return nil, err
		}
	}
	userAgent := "xds-relay/" + version()
	if s.Protocol == configs.ProtocolREST {
		return upstream.DialREST(s.Address, upstream.RESTOptions{
			TLS:              config,
			PollInterval:     s.PollInterval,
			RequestTimeout:   s.RequestTimeout,
			ProbeAfter:       s.Probe.After,
			ProbeTimeout:     s.Probe.Timeout,
			MaxResponseBytes: int(s.MaxResponseBytes),
			UserAgent:        userAgent,
		}), nil
	}
	o := upstream.DialOptions{
		KeepaliveTime:    s.Keepalive.Time,
		KeepaliveTimeout: s.Keepalive.Timeout,
		ProbeAfter:       s.Probe.After,
		ProbeTimeout:     s.Probe.Timeout,
		StreamWindow:     int32(s.Windows.Stream), // Bytes are less than 2 GiB
		ConnWindow:       int32(s.Windows.Connection),
		MaxResponseBytes: int(s.MaxResponseBytes),
		UserAgent:        userAgent,
		MakeRoom:         makeRoom,
	}
	if config != nil {
		o.TLS = credentials.NewTLS(config)
	}
	conn, err := upstream.Dial(s.Address, o)
	if err != nil {
		return nil, err
	}
	return conn, nil
}
