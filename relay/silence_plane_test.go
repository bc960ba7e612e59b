package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// quietPlane is a control plane that fails in the way that state says:
//
//	unreachable  nobody listens
//	refusing     each stream ends at once
//	half_open    connections are taken, and what comes on them is not answered
//	mute         streams are open, and nothing comes on them
//	mute_after   the first request of each stream brings a response of another type,
//	             and then nothing comes
//	alive        it works: globs of endpoints have a member each
type quietPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	state string

	once      sync.Once
	server    *grpc.Server
	lis       *memconn.Listener
	mu        sync.Mutex
	swallowed []net.Conn
}

func (p *quietPlane) dial(ctx context.Context, _ string) (net.Conn, error) {
	switch p.state {
	case "unreachable":
		return nil, errors.New("nobody listens")
	case "half_open":
		ours, theirs := net.Pipe()
		p.mu.Lock()
		p.swallowed = append(p.swallowed, theirs)
		p.mu.Unlock()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		return ours, nil
	}
	p.once.Do(func() {
		p.lis, p.server = memconn.Listen(connBuffer), grpc.NewServer()
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(p.server, p)
		go func() { _ = p.server.Serve(p.lis) }()
	})
	return p.lis.DialContext(ctx)
}

func (p *quietPlane) close() {
	if p.server != nil {
		p.server.Stop()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.swallowed {
		_ = c.Close()
	}
}

var errRefusing = status.Error(codes.PermissionDenied, "not for you")

const otherType = crossingPrefix + "envoy.config.route.v3.RouteConfiguration"

// StreamAggregatedResources serves a SotW stream.
func (p *quietPlane) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if p.state == "refusing" {
		return errRefusing
	}
	for first := true; ; first = false {
		if _, err := s.Recv(); err != nil {
			return err
		}
		if first && p.state == "mute_after" {
			if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: otherType, VersionInfo: "1", Nonce: "1"}); err != nil {
				return err
			}
		}
	}
}

// DeltaAggregatedResources serves a delta stream.
func (p *quietPlane) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if p.state == "refusing" {
		return errRefusing
	}
	for first := true; ; first = false {
		req, err := s.Recv()
		if err != nil {
			return err
		}
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: otherType, Nonce: "1"}
		switch {
		case first && p.state == "mute_after":
		case p.state == "alive" && len(req.GetResourceNamesSubscribe()) > 0:
			name := liveEndpoints + "b"
			resp.TypeUrl = req.GetTypeUrl()
			resp.Resources = []*discoveryv3.Resource{{
				Name: name, Version: "1",
				Resource: &anypb.Any{TypeUrl: req.GetTypeUrl(), Value: appendText(nil, 1, name)},
			}}
		default:
			continue
		}
		if err := s.Send(resp); err != nil {
			return err
		}
	}
}
