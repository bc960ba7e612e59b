package client

// Asking once.

import (
	"context"
	"errors"
	"fmt"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
)

// settle is how long a delta server must be quiet before its answer to a wildcard or a
// glob counts as complete. It may come in several responses, and none is marked as the
// last.
const settle = 250 * time.Millisecond

// Answer is a server's answer to a query.
type Answer struct {
	Resources  []*discoveryv3.Resource // in the order of the query's names, those of a wildcard by name
	Missing    []NameError             // the server says that they do not exist; why, or nil
	Failed     []NameError             // the server says, or sent, something wrong
	Unanswered []string                // nothing was heard of them in time
	Answered   bool                    // whether there was any response
	Unasked    string                  // a resource that was sent without being asked for, if any was
}

// NameError is the error of one name.
type NameError struct {
	Name string
	Err  error
}

// Reasons for which Get ends its stream.
var (
	errWhole   = errors.New("the answer is whole")
	errTimeout = errors.New("timeout")
)

// Get returns when everything is answered, or the timeout is over. The error says why the
// server could not be asked. The answer has everything that arrived before.
func Get(ctx context.Context, server Server, q Query, timeout time.Duration) (Answer, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	// Not a deadline of the context: that would be sent to the server.
	deadline := time.AfterFunc(timeout, func() { end(errTimeout) })
	defer deadline.Stop()
	quiet := time.AfterFunc(timeout, func() { end(errWhole) })
	quiet.Stop()
	defer quiet.Stop()

	a := ask(server, q)
	var answer Answer
	connected := false
	err := a.stream(ctx, func(events []Event) {
		connected = true
		for _, e := range events {
			switch {
			case e.Kind == Unasked:
				answer.Unasked = e.Name
			case (e.Kind == Rejected || e.Kind == Failed) && len(a.state.names.spellings(e.Name)) == 0:
				// Of a name that was asked for the state knows it. This may be of the
				// wildcard.
				answer.Failed = append(answer.Failed, NameError{e.Name, e.Err})
			}
		}
		switch {
		case !a.state.heard || len(a.state.unanswered()) > 0:
		case a.state.names.openEnded() && q.Protocol == Delta:
			quiet.Reset(settle)
		default:
			end(errWhole)
		}
	})

	answer.Resources = a.state.resources()
	answer.Unanswered = a.state.unanswered()
	answer.Answered = a.state.heard
	for _, name := range a.state.names.list {
		if why, ok := a.state.missing[name]; ok {
			answer.Missing = append(answer.Missing, NameError{name, why})
		}
		if err := a.state.failed[name]; err != nil {
			answer.Failed = append(answer.Failed, NameError{name, err})
		}
	}
	if ended := (*EndedError)(nil); errors.As(err, &ended) && ended.Status.Code() == codes.Unavailable && !answer.Answered {
		// It was asked, and this is its answer: what it relays cannot be had.
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
