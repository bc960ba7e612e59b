package client

// Running a session on a stream.

import (
	"context"
	"errors"
	"fmt"
	"io"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	codepb "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/internal/grpcreason"
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
	conn, done, err := a.server.connect()
	if err != nil {
		return err
	}
	defer done()
	return a.explain(ctx, conn, a.on(ctx, conn, a.state.query.form(), report))
}

// connect returns the connection to the server, and what ends the caller's use of it.
func (s Server) connect() (grpc.ClientConnInterface, func(), error) {
	if s.Conn != nil {
		return s.Conn, func() {}, nil
	}
	creds := s.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(s.Address,
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("server address %q: %w", s.Address, err)
	}
	return conn, func() { _ = conn.Close() }, nil
}

// on runs a stream in a form.
func (a *queryRun) on(ctx context.Context, conn grpc.ClientConnInterface, f form, report func([]Event)) error {
	method, err := f.method(a.state.query.TypeURL)
	if err != nil {
		return err
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	if f.protocol == SotW {
		return serve(&grpc.GenericClientStream[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]{ClientStream: stream}, a.sotw, report)
	}
	return serve(&grpc.GenericClientStream[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]{ClientStream: stream}, deltaSession{a.state}, report)
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

// EndedError means that the server ended the stream; the connection did not fail.
type EndedError struct {
	Server string
	Status *status.Status
}

// Error implements error.
func (e *EndedError) Error() string {
	return fmt.Sprintf("%s ended the stream with %s: %s", e.Server, codepb.Code(e.Status.Code()), e.Status.Message())
}

// explain converts gRPC's error into one that people understand. For a form that the server does not serve, it finds out which
// one it serves.
func (a *queryRun) explain(ctx context.Context, conn grpc.ClientConnInterface, err error) error {
	if err == nil {
		return nil
	}
	if ended := (*EndedError)(nil); errors.As(err, &ended) {
		ended.Server = a.server.Address
		return ended
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s ended the stream", a.server.Address)
	}
	if errors.Is(err, errNoService) {
		return err
	}
	st := status.Convert(err)
	message, cause := grpcreason.Plain(st.Message())
	if st.Code() == codes.Unimplemented && cause != grpcreason.NotGRPC {
		return &UnimplementedError{Server: a.server.Address, form: a.state.query.form(), typeURL: a.state.query.TypeURL, serves: a.served(ctx, conn)}
	}
	hint := hints[cause]
	if cause == grpcreason.WantsTLS && a.server.Credentials != nil {
		hint = ""
	}
	if st.Code() == codes.Unavailable {
		return fmt.Errorf("cannot talk to %s: %s%s", a.server.Address, message, hint)
	}
	return fmt.Errorf("%s ended the stream with %s: %s%s", a.server.Address, codepb.Code(st.Code()), message, hint)
}

// isHTTP ends the sentences about an HTTP server.
const isHTTP = " (an HTTP server, such as the admin listener of a relay: xDS clients use the address of one of its listeners)"

// hints say what to do about a cause.
var hints = map[grpcreason.Cause]string{
	grpcreason.WantsTLS:      " (TLS? the server may want it: --tls, with --ca-file, --cert-file and --key-file as needed)",
	grpcreason.Plaintext:     " (the server seems to speak plaintext: leave out TLS)",
	grpcreason.HTTP1:         isHTTP,
	grpcreason.NotGRPC:       isHTTP,
	grpcreason.NoCertificate: " (the server requires a certificate of its clients: --cert-file and --key-file)",
	grpcreason.NoAddress:     " (DNS has no address for the host)",
}
