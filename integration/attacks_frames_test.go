package integration

// Attacks below the level of requests: with connections, and with HTTP/2 frames.

import (
	"context"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"

	"github.com/xds-relay/xds-relay/integration/rawh2"
)

// flood has two clients send frames until the relay closes their connections.
func (at *target) flood(ctx context.Context, t *testing.T, send func(*rawh2.Conn) error) {
	flood(ctx, t, at.raw, send)
}

// floodREST is flood over REST.
func (at *target) floodREST(ctx context.Context, t *testing.T, send func(*rawh2.Conn) error) {
	flood(ctx, t, at.rawREST, send)
}

func flood(ctx context.Context, t *testing.T, dial func(context.Context, *testing.T, rawh2.Options) *rawh2.Conn, send func(*rawh2.Conn) error) {
	var all sync.WaitGroup
	for i := range 2 {
		if c := dial(ctx, t, rawh2.Options{Deaf: i == 0}); c != nil {
			all.Go(func() {
				for ctx.Err() == nil && send(c) == nil {
				}
				c.Close()
			})
		}
	}
	all.Wait()
	<-ctx.Done()
}

// manyPings tests the limit on connections that end soon after they were opened: gRPC closes a connection
// after three pings.
func manyPings(ctx context.Context, _ *testing.T, at *target) {
	again(ctx, 2, func(i int) {
		c, err := rawh2.Dial(at.reserved, rawh2.Options{Deaf: i == 0})
		if err != nil {
			return // the relay may have closed it at once
		}
		defer context.AfterFunc(ctx, c.Close)()
		for ctx.Err() == nil && c.Ping() == nil {
		}
		c.Close()
	})
}

func manySettings(ctx context.Context, t *testing.T, at *target) {
	at.flood(ctx, t, func(c *rawh2.Conn) error { return c.Settings() })
}

func manyRESTSettings(ctx context.Context, t *testing.T, at *target) {
	at.floodREST(ctx, t, func(c *rawh2.Conn) error { return c.Settings() })
}

func manyRESTPings(ctx context.Context, t *testing.T, at *target) {
	at.floodREST(ctx, t, func(c *rawh2.Conn) error { return c.Ping() })
}

func rapidRESTResets(ctx context.Context, t *testing.T, at *target) {
	at.floodREST(ctx, t, func(c *rawh2.Conn) error {
		stream, err := c.Open("/v3/discovery:clusters")
		if err != nil {
			return err
		}
		return c.Reset(stream)
	})
}

func manyWindowUpdates(ctx context.Context, t *testing.T, at *target) {
	at.flood(ctx, t, func(c *rawh2.Conn) error { return c.WindowUpdate(0, 1) })
}

func longSettings(ctx context.Context, t *testing.T, at *target) {
	many := make([]http2.Setting, 2500)
	for i := range many {
		many[i] = http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(i)}
	}
	at.flood(ctx, t, func(c *rawh2.Conn) error { return c.Settings(many...) })
}

// pingsBetweenResponses sends pings while the server sends responses. gRPC itself does not count these.
func pingsBetweenResponses(ctx context.Context, t *testing.T, at *target) {
	at.flood(ctx, t, func(c *rawh2.Conn) error {
		stream, err := c.Open(deltaMethod)
		if err != nil {
			return err
		}
		if err := c.Message(stream, encodedAsk(t)); err != nil {
			return err
		}
		for range 2000 {
			if err := c.Ping(); err != nil {
				return err
			}
		}
		return nil
	})
}

func shortConnections(ctx context.Context, _ *testing.T, at *target) {
	again(ctx, 4, func(int) {
		c, err := rawh2.Dial(at.reserved, rawh2.Options{})
		if err != nil {
			return
		}
		_ = c.Ping() // the relay may have closed it
		c.Close()
	})
}

func badRequests(ctx context.Context, t *testing.T, at *target) {
	again(ctx, 4, func(int) {
		conn := connect(t, at.reserved)
		defer conn.Close()
		if s := at.send(ctx, t, conn, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: strings.Repeat("n", 200<<10)}}); s != nil {
			_, _ = s.Recv() // waits until the relay refuses the stream
		}
	})
}
