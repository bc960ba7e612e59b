package csds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/downstream"
)

// Viewer decides what the caller of the service may see.
type Viewer interface {
	// Clients iterates over the streams that the caller may see, each with a function that reports whether the caller
	// may see a resource of that client.
	Clients() iter.Seq2[*downstream.Inspected, func(*downstream.Held) bool]
	// Upstream iterates over what the relay has requested from control planes, as far as the caller may see it.
	Upstream() iter.Seq[downstream.Held]
	// Place waits for a place for an answer to the caller. If the place is lost, the call ends.
	Place(context.Context) (*downstream.Place, error)
}

const (
	// chunkBytes is the size at which an answer is split into responses. A resource is never split.
	chunkBytes = 1 << 20
	// mostUnary bounds a unary answer. gRPC clients accept 4 MiB by default.
	mostUnary = 4<<20 - 16<<10
	// mostCalls bounds the answers of a listener that are made at the same time, because they take memory and CPU, and
	// mostOfOne those of an identity. A caller that does not read its answer keeps its place for as long as nobody has
	// waited for patience.
	mostCalls, mostOfOne = 4, 2
	patience             = 10 * time.Second
)

// Places returns the places for the callers of a listener.
func Places() *downstream.Places { return downstream.NewPlaces(mostCalls, mostOfOne, patience) }

// OperatorsPlaces returns the places for operators, who have no identities.
func OperatorsPlaces() *downstream.Places { return downstream.NewPlaces(mostCalls, 0, patience) }

// Service is the CSDS service of one listener.
type Service struct {
	statusv3.UnimplementedClientStatusDiscoveryServiceServer
	node   func() *corev3.Node
	viewer func(context.Context) (Viewer, error)
}

// New returns a service. node returns the relay's own Node. viewer returns what the caller of a call with the given
// context may see, or an error if the caller may not use the service.
func New(node func() *corev3.Node, viewer func(context.Context) (Viewer, error)) *Service {
	return &Service{node: node, viewer: viewer}
}

// Register adds the service to a gRPC server.
func (s *Service) Register(to grpc.ServiceRegistrar) {
	statusv3.RegisterClientStatusDiscoveryServiceServer(to, s)
}

// StreamClientStatus implements the service. It answers each request with one or more responses.
func (s *Service) StreamClientStatus(stream grpc.BidiStreamingServer[statusv3.ClientStatusRequest, statusv3.ClientStatusResponse]) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.respond(stream, req); err != nil {
			return err
		}
	}
}

func (s *Service) respond(stream grpc.BidiStreamingServer[statusv3.ClientStatusRequest, statusv3.ClientStatusResponse], req *statusv3.ClientStatusRequest) error {
	v, place, err := s.enter(stream.Context())
	if err != nil {
		return err
	}
	defer place.Give()
	a := &answer{chunk: chunkBytes, send: stream.Send, excludes: req.GetExcludeResourceContents()}
	if err := s.answer(stream.Context(), v, req, a); err != nil {
		return err
	}
	return a.flush(true)
}

// enter returns what the caller may see, and a place for the answer.
func (s *Service) enter(ctx context.Context) (Viewer, *downstream.Place, error) {
	v, err := s.viewer(ctx)
	if err != nil {
		return nil, nil, err
	}
	place, err := v.Place(ctx)
	return v, place, err
}

var errTooLarge = status.Errorf(codes.ResourceExhausted,
	"the answer has more than %d bytes, which is what gRPC clients take: use StreamClientStatus, which splits it, or exclude_resource_contents, or node_matchers that match fewer clients", mostUnary)

// FetchClientStatus implements the service. If the relay's own view is too large, it leaves out the contents, because
// grpcdebug cannot ask for that.
func (s *Service) FetchClientStatus(ctx context.Context, req *statusv3.ClientStatusRequest) (*statusv3.ClientStatusResponse, error) {
	v, place, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, place.Give) // when gRPC has sent the answer
	excludes := req.GetExcludeResourceContents()
	for {
		var whole *statusv3.ClientStatusResponse
		a := &answer{chunk: mostUnary, excludes: excludes, send: func(r *statusv3.ClientStatusResponse) error {
			if whole != nil || proto.Size(r) > mostUnary {
				return errTooLarge
			}
			whole = r
			return nil
		}}
		err := s.answer(ctx, v, req, a)
		if err == nil {
			err = a.flush(true)
		}
		switch {
		case err == nil:
			return whole, nil
		case errors.Is(err, errTooLarge) && !excludes && len(req.GetNodeMatchers()) == 0:
			excludes = true
		default:
			return nil, err
		}
	}
}

// answer builds the answer to a request.
func (s *Service) answer(ctx context.Context, v Viewer, req *statusv3.ClientStatusRequest, a *answer) error {
	matches, err := matcherOf(req.GetNodeMatchers())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "node_matchers: %v", err)
	}
	if matches == nil {
		return s.own(ctx, v, a)
	}
	for c, may := range v.Clients() {
		if err := ctx.Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		if c.Node == nil || !matches(c.Node) {
			continue
		}
		if err := a.begin(c.Node, fmt.Sprintf("stream/%d", c.Stream)); err != nil {
			return err
		}
		for h := range c.Held("") {
			if h.Covered || h.Key == emptyKey && h.Name == "" || !may(&h) {
				continue
			}
			if err := a.add(&h); err != nil {
				return err
			}
		}
	}
	return nil
}

// own builds the relay's own view.
func (s *Service) own(ctx context.Context, v Viewer, a *answer) error {
	if err := a.begin(s.node(), ""); err != nil {
		return err
	}
	n := 0
	for h := range v.Upstream() {
		if n++; n%1000 == 0 && ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		if err := a.add(&h); err != nil {
			return err
		}
	}
	return nil
}
