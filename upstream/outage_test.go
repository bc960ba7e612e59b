package upstream

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
)

// gRFC A71: "xDS Fallback": clients fall back to another server when the control plane
// cannot be reached, and only then.

func unreachable(e *cache.Entry) bool {
	st := e.State()
	return st.Unreachable()
}

func TestARefusedConnectionIsAnOutageUntilTheControlPlaneAnswers(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		b.refuse(errors.New("refused"))
		e := b.watch("cds", "a", "b")
		b.want(e["a"], "failed Unavailable")
		why := e["a"].State().Err
		pass(time.Minute)
		if !unreachable(e["a"]) || e["a"].State().Err.Outage != why.Outage {
			t.Error("it is not the same outage after a minute")
		}

		b.refuse(nil)
		st := b.next()
		st.delta(t)
		b.want(e["a"], "failed Unavailable")
		if !unreachable(e["a"]) {
			t.Error("a stream that is open is no answer")
		}
		b.respond(st, deltaResponse(t, "cds", "1", "a"))
		b.want(e["b"], "failed Unavailable")
		if unreachable(e["b"]) {
			t.Error("the outage goes on although the control plane has answered")
		}
	})
}

func TestAStreamThatEndsBeforeAResponseIsAnOutage(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		e := b.watch("cds", "a")["a"]
		b.next().end <- status.Error(codes.PermissionDenied, "no")
		b.want(e, "failed Unavailable")
		if !unreachable(e) {
			t.Error("nobody can be reached, but that is not said")
		}
	})
}

func TestAStreamThatEndsAfterAResponseIsNoOutage(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		e := b.watch("cds", "a", "b")
		st := b.next()
		st.delta(t)
		b.respond(st, deltaResponse(t, "cds", "1", "a"))
		st.end <- status.Error(codes.Unavailable, "restarting")
		b.want(e["b"], "requested")
		b.next().delta(t)
		b.want(e["b"], "requested")
	})
}

// A control plane that does not answer is slow, and not gone.
func TestAControlPlaneThatDoesNotAnswerIsNoOutage(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		e := b.watch("cds", "a")["a"]
		b.next().delta(t)
		pass(time.Minute)
		if unreachable(e) {
			t.Error("a control plane with an open stream is called unreachable")
		}
	})
}

// A host that is gone does not refuse connections.
func TestAConnectionThatIsNotMadeIsAnOutageSoon(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		b.dialer = func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		e := b.watch("cds", "a")["a"]
		pass(connectTimeout - time.Millisecond)
		b.want(e, "requested")
		pass(time.Millisecond)
		b.want(e, "failed Unavailable")
		if !unreachable(e) {
			t.Error("nobody can be reached, but that is not said")
		}
	})
}

// gRPC goes on connecting while streams are given up.
func TestAConnectionThatTakesLongIsUsed(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		began := time.Now()
		b.dialer = func(ctx context.Context) (net.Conn, error) {
			select {
			case <-time.After(2 * connectTimeout):
				return b.lis.DialContext(ctx)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		e := b.watch("cds", "a")["a"]
		st := b.next()
		st.delta(t)
		b.respond(st, deltaResponse(t, "cds", "1", "a"))
		b.want(e, "present v1")
		if took := time.Since(began); took > 3*connectTimeout {
			t.Errorf("it took %v", took)
		}
	})
}
