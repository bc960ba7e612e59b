package upstream

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"

	"google.golang.org/grpc/connectivity"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Reach connects to the server, and waits until the connection is ready. The error says why
// connecting failed, or that ctx has ended. Streams that are opened later use the connection.
func (c *Conn) Reach(ctx context.Context) error {
	c.mu.Lock()
	cc := c.links[0].cc
	c.mu.Unlock()
	for {
		state := cc.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Shutdown:
			return net.ErrClosed
		case connectivity.TransientFailure:
			// gRPC gives the reason to calls only. This call is not sent, unless there is a connection by now.
			_, err := healthv1.NewHealthClient(cc).Check(ctx, &healthv1.HealthCheckRequest{})
			if cc.GetState() != connectivity.Ready {
				return err
			}
			return nil
		case connectivity.Idle:
			cc.Connect()
		case connectivity.Connecting:
		}
		if !cc.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
}

// Reach connects to the server, and returns an error if that fails. It sends no request, and
// closes the connection.
func (c *RESTConn) Reach(ctx context.Context) error {
	base, err := url.Parse(c.base)
	if err != nil {
		return err
	}
	conn, err := c.o.Dial(ctx, "tcp", base.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	if c.o.TLS == nil {
		return nil
	}
	config := c.o.TLS.Clone()
	if config.ServerName == "" {
		config.ServerName = base.Hostname()
	}
	return tls.Client(conn, config).HandshakeContext(ctx)
}
