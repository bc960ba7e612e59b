package relay

import (
	"context"
	"errors"
	"net"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
	"google.golang.org/grpc"
)

// memoryServer serves a control plane in memory, while it is up.
type memoryServer struct {
	ads discoveryv3.AggregatedDiscoveryServiceServer

	mu     sync.Mutex
	server *grpc.Server // nil while it is down
	lis    *memconn.Listener
}

func (m *memoryServer) up() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lis, m.server = memconn.Listen(1<<20), grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(m.server, m.ads)
	go func(s *grpc.Server, lis net.Listener) { _ = s.Serve(lis) }(m.server, m.lis)
}

func (m *memoryServer) down() {
	m.mu.Lock()
	server := m.server
	m.server = nil
	m.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

// dial is how the relay connects to it.
func (m *memoryServer) dial(ctx context.Context, _ string) (net.Conn, error) {
	m.mu.Lock()
	lis, up := m.lis, m.server != nil
	m.mu.Unlock()
	if !up {
		return nil, errors.New("nobody listens")
	}
	return lis.DialContext(ctx)
}
