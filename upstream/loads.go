package upstream

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Load reports (LRS): one stream for each scope, to its active server.

// loadsForm stands for the service in Presence.forms.
var loadsForm = &form{name: "lrs", method: lrsv3.LoadReportingService_StreamLoadStats_FullMethodName}

var loadsDesc = &grpc.StreamDesc{StreamName: "StreamLoadStats", ClientStreams: true, ServerStreams: true}

// Loads are the loads that a LoadStream reports. The LoadStream calls the methods one at a time.
type Loads interface {
	// Asked takes a response, which says what the control plane wants reported. It returns the time between
	// two reports.
	Asked(*lrsv3.LoadStatsResponse) time.Duration
	// Failed notes that there is no stream at present, Refused that the control plane takes no reports or may not
	// get any.
	Failed()
	Refused()
	// Take returns the stats to send now. most bounds the bytes of a message. It is not ok if the
	// control plane wants no reports. Restore takes back stats that could not be sent.
	Take(most int) (messages [][]*endpointv3.ClusterStats, at time.Time, ok bool)
	Restore(messages [][]*endpointv3.ClusterStats, at time.Time)
	// Alone reports whether no client reports any more.
	Alone() bool
	// Over reports whether nobody needs the stream any more. The LoadStream calls no method after that.
	Over() bool
}

// LoadTarget is a server that takes load reports.
type LoadTarget struct {
	Conn     grpc.ClientConnInterface
	Presence *Presence
	Node     *corev3.Node
	Address  string
	// BackoffBase, BackoffMax and MaxRequestBytes are as in Options.
	BackoffBase, BackoffMax time.Duration
	MaxRequestBytes         int
	// Current reports whether load reports still go to this server.
	Current func() bool
	// Leave releases Conn.
	Leave func()
	// Reports counts the reports that were sent. It may be shared.
	Reports *atomic.Uint64
}

// LoadRoute selects the server for the load reports of a scope.
type LoadRoute interface {
	// Target returns the server for an attempt. attempt is the number of attempts since the last answer. It is not ok
	// if no server takes reports.
	Target(attempt int) (_ LoadTarget, ok bool)
	Close()
}

// LoadStream reports the load of one scope.
type LoadStream struct {
	loads     Loads
	route     LoadRoute
	log       *slog.Logger
	lines     *loglines.Shared
	wake      chan struct{}
	ctx       context.Context
	cancel    context.CancelFunc
	last      chan struct{} // closed when the last report must be sent
	ended     chan struct{}
	connected atomic.Bool
	closing   atomic.Bool
}

const (
	// lastReport is how long the last report may take when the relay ends.
	lastReport = 2 * time.Second
	// mostReportWait is how long a control plane may take to read a report.
	mostReportWait = 15 * time.Second
	// mostDoubts is how many streams in a row a server that has taken reports may refuse before it counts as
	// one that takes none. A proxy in front of a restarting server may refuse streams, too.
	mostDoubts = 5
	// lastWithin is how long a report waits once no client reports any more.
	lastWithin = time.Second
	// overEvery is how often the stream checks whether it is over while the control plane has not answered on it.
	overEvery = time.Minute
)

// errRefused says that a server takes no load reports. errDoubted says the same of a server that has taken some.
// errMoved says that load reports now go to another server, errOver that nobody needs the stream any more.
var (
	errRefused = errors.New("the control plane takes no load reports")
	errDoubted = errors.New("the control plane takes no load reports any more")
	errMoved   = errors.New("load reports go to another server")
	errOver    = errors.New("there is nothing to report any more")
)

// NewLoadStream opens the stream, and does not wait for it. lines bound the log lines of all LoadStreams together.
func NewLoadStream(loads Loads, route LoadRoute, lines *loglines.Shared, log *slog.Logger) *LoadStream {
	s := &LoadStream{
		loads: loads, route: route, lines: lines, log: log,
		wake: make(chan struct{}, 1), last: make(chan struct{}), ended: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	go s.run()
	return s
}

// Wake makes the stream check whether it is over, and whether it goes to the right server.
func (s *LoadStream) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Connected reports whether a gRPC stream is open on which the control plane has answered.
func (s *LoadStream) Connected() bool { return s.connected.Load() }

// Close sends a last report, if a stream is open, and ends the LoadStream.
func (s *LoadStream) Close() {
	if s.closing.CompareAndSwap(false, true) {
		close(s.last)
	}
	late := time.AfterFunc(lastReport, s.cancel)
	defer late.Stop()
	<-s.ended
}

func (s *LoadStream) run() {
	defer close(s.ended)
	defer s.cancel()
	defer s.route.Close()
	attempt := 0
	var wait backoff
	quiet := false // the log has a line about the present outage
	took := false  // some server has taken reports, and none has refused them for good since
	for !s.loads.Over() {
		t, ok := s.route.Target(attempt)
		pause, changed := unimplementedFor, s.appeared
		var err error
		switch {
		case !ok:
			err = errRefused
		default:
			wait.base, wait.limit = or(t.BackoffBase, defaultBackoffBase), or(t.BackoffMax, defaultBackoffMax)
			var responded bool
			responded, err = s.serve(&t)
			if attempt++; responded {
				attempt, quiet, took = 0, false, true
				wait.reset()
			}
			if errors.Is(err, errRefused) && took && attempt < mostDoubts {
				err = errDoubted
			}
			t.Leave()
			changed = func() bool { return !t.Current() }
		}
		switch {
		case errors.Is(err, errOver):
			continue
		case errors.Is(err, errMoved):
			attempt = 0
			continue
		case errors.Is(err, errRefused):
			if ok && t.Presence.forms.found(loadsForm) {
				s.log.Info("the control plane takes no load reports (LRS)", "server", t.Address)
			}
			s.loads.Refused()
			attempt, took = 0, false
		default:
			s.loads.Failed()
			pause = wait.delay()
			if !quiet {
				quiet = true
				s.logLost(t.Address, err)
			}
		}
		if !s.pause(pause, changed) {
			return
		}
	}
}

func (s *LoadStream) logLost(server string, why error) {
	select {
	case <-s.last:
		return // the relay has closed the stream
	default:
	}
	if log, ok := s.lines.Next(s.log); ok {
		log.Warn("load reports wait: there is no stream to the control plane for them", "server", server, "reason", why.Error())
	}
}

// appeared reports whether a server takes reports now.
func (s *LoadStream) appeared() bool {
	t, ok := s.route.Target(0)
	if ok {
		t.Leave()
	}
	return ok
}

// pause waits until the next attempt, which is early if changed returns true. It returns false if there must be no
// further attempt.
func (s *LoadStream) pause(d time.Duration, changed func() bool) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case <-s.wake:
			if s.loads.Over() {
				return false
			}
			if changed() {
				return true
			}
		case <-s.last:
			return false
		}
	}
}

// loadCall is one gRPC stream.
type loadCall struct {
	stream    grpc.ClientStream
	cancel    context.CancelFunc
	responses chan *lrsv3.LoadStatsResponse
	ended     chan error    // has room for one
	over      chan struct{} // closed after ended has got its error
}

// serve reports on one stream until that ends. It returns whether there was a response, and why the stream has ended.
func (s *LoadStream) serve(t *LoadTarget) (responded bool, err error) {
	if t.Presence.forms.lacking(loadsForm) {
		return false, errRefused
	}
	c, err := s.open(t)
	if err != nil {
		return false, err
	}
	defer c.cancel()
	defer s.connected.Store(false)
	var every time.Duration
	due := time.NewTimer(overEvery)
	defer due.Stop()
	soon := false // the timer was set for the report after the last client
	for {
		select {
		case r := <-c.responses:
			if !responded {
				responded = true
				s.connected.Store(true)
				t.Presence.forms.answered(loadsForm)
			}
			if next := s.loads.Asked(r); next != every {
				every = next
				due.Reset(every)
			}
		case err := <-c.ended:
			if status.Code(err) == codes.Unimplemented && !responded {
				return false, errRefused
			}
			return responded, err
		case <-s.wake:
			if !t.Current() {
				return responded, errMoved
			}
			if s.loads.Over() {
				c.part()
				return responded, errOver
			}
			if responded && !soon && s.loads.Alone() {
				soon = true
				due.Reset(min(every, lastWithin))
			}
		case <-due.C:
			soon = false
			if !t.Current() {
				return responded, errMoved
			}
			if responded {
				if err := s.report(c, t); err != nil {
					return responded, err
				}
			}
			if s.loads.Over() {
				c.part()
				return responded, errOver
			}
			due.Reset(cmp.Or(every, overEvery))
		case <-s.last:
			if responded && s.report(c, t) == nil {
				c.part()
			}
			return responded, context.Canceled
		}
	}
}

// open opens a stream and sends the first request. If that fails, ended has the reason.
func (s *LoadStream) open(t *LoadTarget) (*loadCall, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	connect := time.AfterFunc(minConnectTimeout, cancel)
	defer connect.Stop()
	opened := make(chan struct{})
	defer close(opened)
	go func() {
		select {
		case <-s.last: // nothing can be sent any more
			cancel()
		case <-opened:
		}
	}()
	stream, err := t.Conn.NewStream(ctx, loadsDesc, loadsForm.method)
	if err == nil {
		node := proto.CloneOf(t.Node)
		node.ClientFeatures = append(node.ClientFeatures, supportsAllClusters)
		if err = stream.SendMsg(&lrsv3.LoadStatsRequest{Node: node}); errors.Is(err, io.EOF) {
			err = nil // ended says why
		}
	}
	if err != nil {
		cancel()
		return nil, err
	}
	c := &loadCall{stream: stream, cancel: cancel, responses: make(chan *lrsv3.LoadStatsResponse), ended: make(chan error, 1), over: make(chan struct{})}
	go c.receive(ctx)
	return c, nil
}

// supportsAllClusters is the client feature of LRS clients that support send_all_clusters.
const supportsAllClusters = "envoy.lrs.supports_send_all_clusters"

func (c *loadCall) receive(ctx context.Context) {
	for {
		r := new(lrsv3.LoadStatsResponse)
		if err := c.stream.RecvMsg(r); err != nil {
			c.ended <- err
			close(c.over)
			return
		}
		select {
		case c.responses <- r:
		case <-ctx.Done():
		}
	}
}

// report sends a report. It restores the stats of messages that gRPC has not accepted.
func (s *LoadStream) report(c *loadCall, t *LoadTarget) error {
	messages, at, ok := s.loads.Take(or(t.MaxRequestBytes, defaultMaxRequestBytes))
	if !ok {
		return nil
	}
	if len(messages) == 0 {
		messages = [][]*endpointv3.ClusterStats{nil} // an empty report says that there was no load, as from clients
	}
	for i, message := range messages {
		stuck := time.AfterFunc(mostReportWait, c.cancel)
		err := c.stream.SendMsg(&lrsv3.LoadStatsRequest{ClusterStats: message})
		stuck.Stop()
		if err == nil {
			t.Reports.Add(1)
			messages[i] = nil // it takes no memory while others wait
			continue
		}
		s.loads.Restore(messages[i:], at)
		if errors.Is(err, io.EOF) {
			return c.why()
		}
		return err
	}
	return nil
}

// why returns why a stream has ended. It drops responses that came before the end: the next stream has its own.
func (c *loadCall) why() error {
	for {
		select {
		case err := <-c.ended:
			return err
		case <-c.responses: // receive waits until it is taken
		}
	}
}

// part waits for the control plane to end the stream, so that it has read everything.
func (c *loadCall) part() {
	if c.stream.CloseSend() != nil {
		return
	}
	timer := time.NewTimer(parting)
	defer timer.Stop()
	for {
		select {
		case <-c.over:
			return
		case <-c.responses:
		case <-timer.C:
			return
		}
	}
}
