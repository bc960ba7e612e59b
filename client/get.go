package client

// A query that ends when the server has answered it.

import (
	"context"
	"errors"
	"fmt"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
)

// quietTime is how long a delta server must send nothing before its answer to a wildcard or a glob
// counts as complete. The answer may come in several responses, and none is marked as the last.
const quietTime = 250 * time.Millisecond

// Answer is a server's answer to a query.
type Answer struct {
	Resources   []*discoveryv3.Resource // in the order of the query; those of a wildcard by name
	Missing     []NameError             // names that do not exist, with the server's reason or nil
	Failed      []NameError             // names with an error of the server, or with a bad resource
	Unanswered  []string                // names without an answer in time
	Answered    bool                    // there was a response
	Unrequested string                  // a resource that the server sent and the query does not request, if any
}

// NameError is the error of one name.
type NameError struct {
	Name string
	Err  error
}

// Reasons for which Get ends its stream.
var (
	errWhole   = errors.New("the answer is complete")
	errTimeout = errors.New("timeout")
)

// Get sends a query and returns when the answer is complete, or after the timeout. An error means that
// there was no connection or stream, or that it failed. The answer has everything that arrived before
// that.
func Get(ctx context.Context, server Server, q Query, timeout time.Duration) (Answer, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	// Not a deadline of the context, because gRPC would send that to the server.
	deadline := time.AfterFunc(timeout, func() { end(errTimeout) })
	defer deadline.Stop()
	quiet := time.AfterFunc(timeout, func() { end(errWhole) })
	quiet.Stop()
	defer quiet.Stop()

	a := newQueryRun(server, q)
	var answer Answer
	connected := false
	err := a.stream(ctx, func(events []Event) {
		connected = true
		for _, e := range events {
			switch {
			case e.Kind == Unrequested:
				answer.Unrequested = e.Name
			case (e.Kind == Rejected || e.Kind == Failed) && len(a.state.names.spellings(e.Name)) == 0:
				// The state has the errors of requested names. This name was not requested itself: it
				// may be a member of the wildcard.
				answer.Failed = append(answer.Failed, NameError{e.Name, e.Err})
			}
		}
		switch {
		case !a.state.responded || len(a.state.unanswered()) > 0:
		case a.state.names.openEnded() && q.Protocol == Delta:
			quiet.Reset(quietTime)
		default:
			end(errWhole)
		}
	})

	answer.Resources = a.state.resources()
	answer.Unanswered = a.state.unanswered()
	answer.Answered = a.state.responded
	for _, name := range a.state.names.list {
		if why, ok := a.state.missing[name]; ok {
			answer.Missing = append(answer.Missing, NameError{name, why})
		}
		if err := a.state.failed[name]; err != nil {
			answer.Failed = append(answer.Failed, NameError{name, err})
		}
	}
	if ended := (*EndedError)(nil); errors.As(err, &ended) && ended.Status.Code() == codes.Unavailable && !answer.Answered {
		// The server ended the stream: that is its answer for the names without one.
		answer.Failed, answer.Unanswered = append(answer.Failed, a.state.unavailable(ended.Status)...), nil
		return answer, nil
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errWhole):
		return answer, nil
	case errors.Is(cause, errTimeout) && !connected:
		return answer, fmt.Errorf("no connection to %s within %v", server.Address, timeout)
	case errors.Is(cause, errTimeout):
		return answer, nil
	case cause != nil:
		return answer, cause
	}
	return answer, err
}
