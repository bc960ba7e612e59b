package client

// Running a session on a stream.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	codepb "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// maxResponse bounds the size of a response. It is far above gRPC's default of 4 MiB, so that
// people can inspect responses that are too large for other clients.
const maxResponse = 256 << 20

// queryRun is a query in progress.
type queryRun struct {
	server Server
	state  *state
	sotw   *sotwSession // keeps its state from stream to stream
}

func newQueryRun(server Server, q Query) *queryRun {
	st := newState(q)
	return &queryRun{server: server, state: st, sotw: &sotwSession{state: st}}
}

// stream opens one stream, processes its responses until it ends, and returns why it ended. It calls
// report on this goroutine: once when the stream is open, and once for each response, also without
// events. It does not reconnect, because gRPC's own backoff would hide the error.
func (a *queryRun) stream(ctx context.Context, report func([]Event)) error {
	creds := a.server.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(a.server.Address,
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
	)
	if err != nil {
		return fmt.Errorf("server address %q: %w", a.server.Address, err)
	}
	defer conn.Close()
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if a.state.query.Protocol == SotW {
		s, err := ads.StreamAggregatedResources(ctx)
		if err != nil {
			return a.explain(err)
		}
		return a.explain(serve(s, a.sotw, report))
	}
	s, err := ads.DeltaAggregatedResources(ctx)
	if err != nil {
		return a.explain(err)
	}
	return a.explain(serve(s, deltaSession{a.state}, report))
}

// session is one form of the protocol, as a value.
type session[Req, Resp any] interface {
	open() *Req
	receive(*Resp) (*Req, []Event)
}

func serve[Req, Resp any](s grpc.BidiStreamingClient[Req, Resp], form session[Req, Resp], report func([]Event)) error {
	report([]Event{{Kind: Connected}})
	// If Send returns io.EOF, Recv returns the reason.
	if err := s.Send(form.open()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for {
		resp, err := s.Recv()
		if err != nil {
			if st := status.Convert(err); st.Code() != codes.Unimplemented && len(s.Trailer()) > 0 {
				return &EndedError{Status: st}
			}
			return err
		}
		reply, events := form.receive(resp)
		if err := s.Send(reply); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		report(events)
	}
}

// UnimplementedError means that a server does not serve the requested form of xDS.
type UnimplementedError struct {
	Server   string
	Protocol Protocol
}

// Error implements error. It names the other form of xDS.
func (e *UnimplementedError) Error() string {
	return fmt.Sprintf("%s does not serve %s xDS on the aggregated discovery service (it answers UNIMPLEMENTED); try --protocol %s",
		e.Server, e.Protocol, e.Protocol.other())
}

// EndedError means that the server ended the stream; the connection did not fail.
type EndedError struct {
	Server string
	Status *status.Status
}

// Error implements error.
func (e *EndedError) Error() string {
	return fmt.Sprintf("%s ended the stream with %s: %s", e.Server, codepb.Code(e.Status.Code()), e.Status.Message())
}

// explain converts gRPC's error into one that people understand.
func (a *queryRun) explain(err error) error {
	if ended := (*EndedError)(nil); errors.As(err, &ended) {
		ended.Server = a.server.Address
		return ended
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s ended the stream", a.server.Address)
	}
	st := status.Convert(err)
	if st.Code() == codes.Unimplemented {
		return &UnimplementedError{Server: a.server.Address, Protocol: a.state.query.Protocol}
	}
	message := st.Message()
	// Only the last part of gRPC's nested descriptions is informative.
	if _, inner, ok := strings.Cut(message, "Error while dialing: "); ok {
		message = strings.Trim(inner, `"`)
	}
	hint := ""
	switch {
	case strings.Contains(message, "first record does not look like a TLS handshake"):
		hint = " (the server seems to speak plaintext: leave out TLS)"
	case strings.Contains(message, "error reading server preface") && a.server.Credentials == nil:
		hint = " (the server may want TLS: --tls)"
	}
	if st.Code() == codes.Unavailable {
		return fmt.Errorf("cannot talk to %s: %s%s", a.server.Address, message, hint)
	}
	return fmt.Errorf("%s ended the stream with %s: %s%s", a.server.Address, codepb.Code(st.Code()), message, hint)
}
