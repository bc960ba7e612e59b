package relay

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/process"
	"github.com/xds-relay/xds-relay/upstream"
)

// Connections to servers.

// connection is a gRPC or REST connection to a server. Scopes share it if their servers have the same place.
type connection interface {
	grpc.ClientConnInterface
	io.Closer
	// Reach connects to the server, and returns why that fails.
	Reach(ctx context.Context) error
}

// place identifies a connection: a server's configuration without the keys that concern single streams.
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
	p.TLS, p.Aggregated, p.Globs, p.Node, p.SotWAnswers, p.Backoff, p.MaxRequestBytes = nil, false, false, "", "", configs.Backoff{}, 0
	if s.Protocol != configs.ProtocolREST {
		p.Protocol = ""
	}
	return p
}

// dial returns the connection to a server, which connects on first use. makeRoom and largeResponse are those of
// upstream.DialOptions.
func dial(s configs.Server, part *certs.Part, makeRoom func() bool, largeResponse func(bytes int)) (connection, error) {
	config, err := serverTLS(part, &s)
	if err != nil {
		return nil, err
	}
	var token func() string // nil: none
	if s.TokenFile != "" {
		file, err := part.Token(s.TokenFile)
		if err != nil {
			return nil, err
		}
		token = file.Get
	}
	userAgent := "xds-relay/" + process.Version()
	if s.Protocol == configs.ProtocolREST {
		return upstream.DialREST(s.Address, upstream.RESTOptions{
			TLS:              config,
			PollInterval:     s.PollInterval,
			RequestTimeout:   s.RequestTimeout,
			ProbeAfter:       s.Probe.After,
			ProbeTimeout:     s.Probe.Timeout,
			MaxResponseBytes: int(s.MaxResponseBytes),
			UserAgent:        userAgent,
			Token:            token,
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
		LargeResponse:    largeResponse,
	}
	if token != nil {
		o.Extra = append(o.Extra, grpc.WithPerRPCCredentials(bearer(token)))
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

// bearer is a token that the relay sends with each call.
type bearer func() string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (token bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + token()}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return true }
