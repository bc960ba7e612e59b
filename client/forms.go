package client

// The forms in which a server may serve a query, and which one it serves.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// form is a protocol on the aggregated discovery service, or on the type's own.
type form struct {
	protocol Protocol
	services bool
}

func (q *Query) form() form { return form{q.Protocol, q.Services} }

// errNoService is for types that only the aggregated service has.
var errNoService = errors.New("this type has no discovery service of its own for this form of xDS: only a server with the aggregated one can have it")

// method returns the gRPC method for a type.
func (f form) method(typeURL string) (string, error) {
	service := xdstype.AggregatedV3
	if f.services {
		if service = xdstype.Of(typeURL).Service(typeURL); service == nil {
			return "", fmt.Errorf("%s: %w", typeURL, errNoService)
		}
	}
	name := service.Delta
	if f.protocol == SotW {
		name = service.Stream
	}
	if name == "" {
		return "", fmt.Errorf("%s: %w", typeURL, errNoService)
	}
	return service.Method(name), nil
}

// flags returns the flags of commands that select a form, of those that differ from another form.
func (f form) flags(other form) string {
	var flags []string
	if f.protocol != other.protocol {
		flags = append(flags, "--protocol "+f.protocol.String())
	}
	if f.services != other.services {
		flags = append(flags, fmt.Sprintf("--aggregated=%t", !f.services))
	}
	return strings.Join(flags, " ")
}

// UnimplementedError means that a server does not serve the requested form of xDS.
type UnimplementedError struct {
	Server  string
	form    form
	typeURL string
	serves  *form // nil if it serves none
}

// Error implements error. It names the form of xDS that the server serves.
func (e *UnimplementedError) Error() string {
	service := "the aggregated discovery service"
	if e.form.services {
		service = "the discovery service of " + xdstype.Word(e.typeURL)
	}
	text := fmt.Sprintf("%s does not serve %s xDS on %s (it answers UNIMPLEMENTED)", e.Server, e.form.protocol, service)
	if e.serves == nil {
		return text + ", and no other form for this type: it may be another gRPC server, such as the admin listener of a relay"
	}
	return text + "; try " + e.serves.flags(e.form)
}

// Serves returns the form of xDS that the server serves instead; ok is false if it serves none.
func (e *UnimplementedError) Serves() (protocol Protocol, services, ok bool) {
	if e.serves == nil {
		return 0, false, false
	}
	return e.serves.protocol, e.serves.services, true
}

// triedFor is how long a server may take to refuse a form.
const triedFor = 500 * time.Millisecond

// served returns the first of the other forms that the server does not refuse, nil if it refuses all.
func (a *queryRun) served(ctx context.Context, conn grpc.ClientConnInterface) *form {
	own := a.state.query.form()
	others := []form{{own.protocol.other(), own.services}, {own.protocol, !own.services}, {own.protocol.other(), !own.services}}
	results := make([]chan bool, len(others))
	for i, f := range others {
		results[i] = make(chan bool, 1)
		go func() { results[i] <- a.takes(ctx, conn, f) }()
	}
	var first *form
	for i := range others {
		if <-results[i] && first == nil {
			first = &others[i]
		}
	}
	return first
}

// takes reports whether the server answers the query in a form, or at least does not refuse it.
func (a *queryRun) takes(ctx context.Context, conn grpc.ClientConnInterface, f form) bool {
	ctx, cancel := context.WithTimeout(ctx, triedFor)
	defer cancel()
	query := a.state.query
	query.Protocol, query.Services = f.protocol, f.services
	answered := false
	err := newQueryRun(a.server, query).on(ctx, conn, f, func(events []Event) {
		if len(events) != 1 || events[0].Kind != Connected {
			answered = true
			cancel()
		}
	})
	switch {
	case answered, status.Code(err) == codes.DeadlineExceeded:
		return true
	case errors.Is(err, errNoService):
		return false
	}
	return status.Code(err) != codes.Unimplemented && status.Code(err) != codes.Unavailable
}
