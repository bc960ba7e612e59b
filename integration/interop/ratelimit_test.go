package interop

// envoyproxy's rate limit service. It speaks SotW, and requests all resources of a type that is not built
// into the relay.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// rateLimitService is a running rate limit service.
type rateLimitService struct {
	*peers.Process
	t   testing.TB
	api ratelimitv3.RateLimitServiceClient
}

const redisServer = "redis-server"

// prepareRateLimit builds the service, if Redis is installed, which the service needs for its counters.
var prepareRateLimit = sync.OnceValue(func() error {
	if _, err := exec.LookPath(redisServer); err != nil {
		return err
	}
	return peers.Build("ratelimit", "ratelimit", "github.com/envoyproxy/ratelimit/src/service_cmd")
})

// withRules returns why a control plane has no rules for the service, or "" if it has.
func withRules(k kind) string {
	if k.rules {
		return ""
	}
	return "This control plane does not have the type of the rate limit service's rules"
}

// rules checks that the service loads its rules, and follows changes, additions and removals. The service
// takes each response for the full state, so each has to have all rules.
func rules(t testing.TB, p *plane) {
	cp := p.controlPlane.(ruler)
	want := map[string]uint32{"shop": 10, "bar": 20}
	cp.rule(want)
	r := startRelay(t, p.address)
	s := startRateLimit(t, r.address)
	s.awaitLimits(want)
	for _, change := range []map[string]uint32{
		{"shop": 30},
		{"bar": 40},
		{"kiosk": 50},
	} {
		maps.Copy(want, change)
		cp.rule(want)
		s.awaitLimits(want)
	}
	delete(want, "bar")
	cp.rule(want)
	want["bar"] = 0 // there is none
	s.awaitLimits(want)

	delete(want, "bar")
	cp.rule(want)
	want["bar"] = 0 // there is none
	s.awaitLimits(want)

	p.check(t)
	r.CheckRejections()
}

// startRateLimit starts the service with the relay as its control plane.
func startRateLimit(t testing.TB, relay string) *rateLimitService {
	t.Helper()
	// Unix sockets, because another process could take a port.
	sockets, err := os.MkdirTemp("", "interop-") //nolint:usetesting // the path of a test's folder may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	redis, api := filepath.Join(sockets, "redis"), filepath.Join(sockets, "api")

	counters := start(t, redisServer, exec.Command(redisServer,
		"--port", "0", "--unixsocket", redis, "--save", "", "--appendonly", "no", "--dir", sockets))
	eventually(t, redisServer+" accepts connections", func() error {
		conn, err := net.Dial("unix", redis)
		if err != nil {
			return errors.Join(err, counters.Failed())
		}
		return conn.Close()
	})

	cmd := exec.Command(peers.Program("ratelimit"))
	cmd.Env = append(os.Environ(),
		"CONFIG_TYPE=GRPC_XDS_SOTW",
		"CONFIG_GRPC_XDS_NODE_ID="+nodeID,
		"CONFIG_GRPC_XDS_SERVER_URL="+relay,
		"REDIS_SOCKET_TYPE=unix", "REDIS_URL="+redis,
		"GRPC_UDS="+api,
		"HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"USE_STATSD=false", "LOG_LEVEL=debug",
	)
	s := &rateLimitService{Process: start(t, "the rate limit service", cmd), t: t}
	conn, err := grpc.NewClient("unix:"+api,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(soon)) // the service listens only when it has its first rules
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.api = ratelimitv3.NewRateLimitServiceClient(conn)
	return s
}

// limit asks the service about a visit, and returns the limit that applies, 0 if none does.
func (s *rateLimitService) limit(domain string) (uint32, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	reply, err := s.api.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{
		Domain: domain,
		Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "visit"}},
		}},
	}, grpc.WaitForReady(true))
	if err != nil {
		return 0, errors.Join(err, s.Failed())
	}
	return reply.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit(), nil
}

// awaitLimits waits until the service applies these limits.
func (s *rateLimitService) awaitLimits(want map[string]uint32) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("the service has the limits %v", want), func() error {
		for _, domain := range slices.Sorted(maps.Keys(want)) {
			got, err := s.limit(domain)
			if err == nil && got != want[domain] {
				err = fmt.Errorf("%s has the limit %d", domain, got)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
