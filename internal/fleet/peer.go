package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Whether a member is there is seen on the connection to it, over which the scopes' streams go, too: a health watch ends
// at once with a process or a connection, and calls notice a member that hangs or a network that is cut: two of them
// without an answer, because one may be slow.

// Conn is a connection to a member.
type Conn interface {
	grpc.ClientConnInterface
	io.Closer
}

// Peer is another member.
type Peer struct {
	Address string
	// Conn is the connection to it. A member that Route returns has one.
	Conn Conn
	// ID is different for each Peer of the process.
	ID uint64

	fleet  *Fleet
	hash   uint64
	cancel context.CancelFunc
	// known is closed once the first attempt to reach the member has ended. Fleet.mu guards the rest.
	known   chan struct{}
	up      bool
	isSelf  bool          // it is this relay, under an address that it did not know as its own
	foundAt time.Time     // when it was last found
	proves  time.Duration // how long it has to be there before it gives scopes; 0 if it was never lost
	reason  string        // why it is not up
}

// Fleet returns the Fleet of which the peer is a member.
func (p *Peer) Fleet() *Fleet { return p.fleet }

const (
	// reachedWithin bounds the first answer.
	reachedWithin = time.Second
	// checkEvery is the time between two checks of a member, checkWithin that for the answer, and mostMissed how many
	// answers may be missing in a row. So a member that hangs is noticed within 2 s.
	checkEvery, checkWithin, mostMissed = 500 * time.Millisecond, 700 * time.Millisecond, 1
	// retryEvery is the time between two attempts to reach a member that is not there.
	retryEvery = 500 * time.Millisecond
	// provesFor is how long a member that was lost has to be there before it gives scopes again. That doubles if it is
	// lost again before it was there for steadyFor, up to provesAtMost. So a member that crashes again and again does not
	// make scopes move each time.
	provesFor, provesAtMost, steadyFor = 3 * time.Second, 3 * time.Minute, 5 * time.Minute
)

// ServiceOf returns the name of a fleet for gRPC health. So relays of different fleets do not take each other for members.
func ServiceOf(fleet string) string { return "xds-relay.fleet/" + fleet }

// connect makes the connection to the member, unless there is one already.
func (p *Peer) connect(ctx context.Context) error {
	if p.Conn != nil {
		return nil
	}
	conn, err := p.fleet.options.Dial(p.Address)
	if err != nil {
		return err
	}
	p.fleet.mu.Lock()
	ended := ctx.Err()
	if ended == nil {
		p.Conn = conn
	}
	p.fleet.mu.Unlock()
	if ended != nil {
		_ = conn.Close() // it was not used
	}
	return ended
}

// close closes the connection to the member. ctx of run has ended.
func (p *Peer) close() {
	p.fleet.mu.Lock()
	conn := p.Conn
	p.fleet.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // the only error means that it is closed already
	}
}

// run follows the member until ctx ends.
func (p *Peer) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := p.connect(ctx)
		if err == nil {
			err = p.attend(ctx)
		}
		if errors.Is(err, errSelf) {
			p.fleet.foundSelf(p)
			return
		}
		p.fleet.lost(p, err)
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

var (
	errLeaving = errors.New("it is leaving the fleet")
	errSelf    = errors.New("it is this relay itself")
)

// InstanceHeader is the metadata with the instance of the caller of a member: see [Fleet.IsSelf].
const InstanceHeader = "x-xds-relay-instance"

// IsSelf reports whether a call comes from this relay itself: its list of members has an address of this relay. The
// relay refuses the call with ALREADY_EXISTS.
func (f *Fleet) IsSelf(ctx context.Context) bool {
	return slices.Contains(metadata.ValueFromIncomingContext(ctx, InstanceHeader), f.options.Instance)
}

// attend watches the member, and returns why it does not serve.
func (p *Peer) attend(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	unanswered := time.AfterFunc(reachedWithin, func() { cancel(fmt.Errorf("no answer within %s", reachedWithin)) })
	defer unanswered.Stop()
	client := healthpb.NewHealthClient(p.Conn)
	request := &healthpb.HealthCheckRequest{Service: ServiceOf(p.fleet.options.Name)}
	watch, err := client.Watch(metadata.AppendToOutgoingContext(ctx, InstanceHeader, p.fleet.options.Instance), request)
	if err != nil {
		return reasonOf(ctx, err)
	}
	checking := false
	for {
		answer, err := watch.Recv()
		switch {
		case status.Code(err) == codes.AlreadyExists:
			return errSelf
		case err != nil:
			return reasonOf(ctx, err)
		case answer.GetStatus() == healthpb.HealthCheckResponse_SERVICE_UNKNOWN:
			return fmt.Errorf("it is no relay of the fleet %q", p.fleet.options.Name)
		case answer.GetStatus() != healthpb.HealthCheckResponse_SERVING:
			return errLeaving
		}
		unanswered.Stop()
		if !checking {
			checking = true
			p.fleet.found(p)
			go p.check(ctx, client, request, cancel)
		}
	}
}

// check calls the member again and again, and ends the watch when the member does not answer.
func (p *Peer) check(ctx context.Context, client healthpb.HealthClient, request *healthpb.HealthCheckRequest, fail context.CancelCauseFunc) {
	again := time.NewTicker(checkEvery)
	defer again.Stop()
	for missed := 0; ; {
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
		within, cancel := context.WithTimeoutCause(ctx, checkWithin, fmt.Errorf("no answer within %s", checkWithin))
		_, err := client.Check(within, request)
		switch missed++; {
		case err == nil:
			missed = 0
		case missed > mostMissed:
			fail(reasonOf(within, err))
		}
		cancel()
	}
}

// reasonOf returns why a call has ended.
func reasonOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errors.New(status.Convert(err).Message())
}
