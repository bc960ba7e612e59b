package client

// A session on a stream.

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

// maxResponse bounds what one response may take of this process's memory. It is
// far above gRPC's 4 MiB, because somebody who looks into a server wants to see
// what is too large for others.
const maxResponse = 256 << 20

// asking is a query in progress: its state, in the form that its protocol needs.
type asking struct {
	server Server
	state  *state
	sotw   *sotwSession // it has state of its own to keep from stream to stream
}

func ask(server Server, q Query) *asking {
	st := newState(q)
	return &asking{server: server, state: st, sotw: &sotwSession{state: st}}
}

// stream opens one stream and serves it until it breaks, which is always an
// error. It calls tell from this goroutine, with nothing between responses, once
// per response even if that has no news. A broken connection is not tried again,
// so that its error is seen, and not hidden behind gRPC's own backoff.
func (a *asking) stream(ctx context.Context, tell func([]Event)) error {
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
		return a.explain(serve(s, a.sotw, tell))
	}
	s, err := ads.DeltaAggregatedResources(ctx)
	if err != nil {
		return a.explain(err)
	}
	return a.explain(serve(s, deltaSession{a.state}, tell))
}

// session is one form of the protocol, as a value.
type session[Req, Resp any] interface {
	open() *Req
	receive(*Resp) (*Req, []Event)
}

func serve[Req, Resp any](s grpc.BidiStreamingClient[Req, Resp], form session[Req, Resp], tell func([]Event)) error {
	tell([]Event{{Kind: Connected}})
	// When Send says io.EOF, Recv has the reason.
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
		tell(events)
	}
}

// UnimplementedError says that a server does not serve the form of xDS that was
// asked of it.
type UnimplementedError struct {
	Server   string
	Protocol Protocol
}

// Error says what else to try.
func (e *UnimplementedError) Error() string {
	return fmt.Sprintf("%s does not serve %s xDS on the aggregated discovery service (it answers UNIMPLEMENTED); try --protocol %s",
		e.Server, e.Protocol, e.Protocol.other())
}

// EndedError says that the server itself has ended the stream: it was not the connection
// that failed.
type EndedError struct {
	Server string
	Status *status.Status
}

// Error says with what.
func (e *EndedError) Error() string {
	return fmt.Sprintf("%s ended the stream with %s: %s", e.Server, codepb.Code(e.Status.Code()), e.Status.Message())
}

// explain turns gRPC's error into one for people.
func (a *asking) explain(err error) error {
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
	// The last part of gRPC's nested descriptions is the one that says something.
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
