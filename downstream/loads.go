package downstream

import (
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// The load reporting service (LRS). Its streams come in by the door of their listener, as xDS streams do, and have the
// same limits. LoadReports processes the reports.

// maxLoadParts bounds the memory of a decoded report: two bytes can encode a locality, which takes two hundred in
// memory. A report on 1000 clusters of 10 localities with 5 metrics each has 200,000 parts.
const maxLoadParts = 256 << 10

// loadRequestFields are the fields of LoadStatsRequest.
var (
	loadRequest       = wire.RequestFields{Node: 1}
	loadRequestFields = (*lrsv3.LoadStatsRequest)(nil).ProtoReflect().Descriptor().Fields()
)

// loadCall is one client's stream of reports.
type loadCall struct {
	server *Server
	grpc   grpc.ServerStream
	in     *arrival

	mu     sync.Mutex
	scopes map[cache.Scope]struct{} // those that the client can make up
}

// loadCalls are the open streams of reports. The zero value is ready.
type loadCalls struct {
	mu   sync.Mutex // the innermost lock
	open map[*loadCall]struct{}
}

func (l *loadCalls) add(c *loadCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[*loadCall]struct{}{}
	}
	l.open[c] = struct{}{}
}

// of returns the open streams of an identity.
func (l *loadCalls) of(u *identityUse) (calls []*loadCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if c.in.uses == u {
			calls = append(calls, c)
		}
	}
	return calls
}

func (l *loadCalls) remove(c *loadCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
}

// dismiss ends the streams of clients that their listeners no longer admit.
func (l *loadCalls) dismiss() {
	l.mu.Lock()
	calls := make([]*loadCall, 0, len(l.open))
	for c := range l.open {
		calls = append(calls, c)
	}
	l.mu.Unlock()
	for _, c := range calls {
		admits := c.in.gate.door.newest.Load().admits
		if admits == nil {
			continue
		}
		if err := admits(c.in.identity); err != nil {
			ctx := c.grpc.Context()
			c.server.noteRefusedClient(ctx, c.in.gate, err)
			time.AfterFunc(rand.N(dismissSpread), func() { finish(ctx, err) })
		}
	}
}

// registerLoads adds the load reporting service.
func (s *Server) registerLoads(r GRPCServer, d *Door) {
	of := &lrsv3.LoadReportingService_ServiceDesc
	desc := &grpc.ServiceDesc{ServiceName: of.ServiceName, HandlerType: (*any)(nil)}
	desc.Streams = append(desc.Streams, streamDesc(of.Streams[0].StreamName, func(_ any, call grpc.ServerStream) error {
		in, err := s.admitCall(call, d)
		if err != nil {
			return err
		}
		defer in.leave()
		c := &loadCall{server: s, grpc: call, in: in, scopes: map[cache.Scope]struct{}{}}
		s.loadCalls.add(c)
		defer s.loadCalls.remove(c)
		if stop := in.gate.expires(in.identity, false, func() { s.expire(call.Context(), in.gate, in.identity, c.log()) }); stop != nil {
			defer stop()
		}
		return c.serve()
	}))
	r.RegisterService(desc, s)
}

// serve receives the client's reports until the client goes, and sends it the responses of LoadReports.
func (c *loadCall) serve() error {
	pace := newPace(c.in.gate.limits)
	first, err := c.receive()
	if err != nil {
		return ended(err)
	}
	if e := over(limitNodeBytes, proto.Size(first.GetNode()), maxNodeBytes, "a node of %d bytes"); e != nil {
		return c.refuse(e)
	}
	stream, err := c.server.options.Loads.Open(c.client(first.GetNode()))
	c.in.attended()
	if err != nil {
		return err
	}
	defer stream.Close()
	if len(first.GetClusterStats()) > 0 {
		stream.Report(first)
	}
	received := make(chan error, 1)
	go func() {
		for {
			if pace != nil {
				if waited, _ := pause(c.grpc.Context(), pace); waited {
					c.server.stats.limits[limitRequests].Add(1)
				}
			}
			r, err := c.receive()
			if err != nil {
				received <- err
				return
			}
			stream.Report(r)
			most := c.in.gate.limits.MemoryStreams
			if part, least := c.server.scarce(most); part > 0 {
				c.server.endLargest(part, most, least)
			}
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case err := <-received:
			return ended(err)
		case <-stream.Changed():
		case <-timer.C:
		}
		r, again := stream.Response()
		if r != nil {
			if err := c.grpc.SendMsg(r); err != nil {
				return err
			}
		}
		if again > 0 {
			timer.Reset(again)
		}
	}
}

// ended returns the status of a stream that ends with an error of receive.
func ended(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// receive returns the next request, checked against the limits. Its cost is known before it is decoded.
func (c *loadCall) receive() (*lrsv3.LoadStatsRequest, error) {
	var in incoming
	if err := c.grpc.RecvMsg(&in); err != nil {
		return nil, err
	}
	if !c.server.turn(c.grpc.Context(), c.in.identity, &in) {
		return nil, io.EOF
	}
	if e := in.excess(); e != nil {
		return nil, c.refuse(e)
	}
	defer in.free()
	data := in.data.ReadOnlyData()
	l := &c.in.gate.limits
	if e := l.overCost(loadRequest.Cost(data, nodeLimits)); e != nil {
		return nil, c.refuse(e)
	}
	if e := over(limitLoadParts, wire.Values(data, loadRequestFields, maxLoadParts), maxLoadParts, "a load report of %d parts or more"); e != nil {
		return nil, c.refuse(e)
	}
	r := &lrsv3.LoadStatsRequest{}
	if err := proto.Unmarshal(data, r); err != nil {
		err = status.Errorf(codes.Internal, "the request cannot be decoded: %v", err)
		if log, ok := c.in.gate.line(eventInvalid, c.log()); ok {
			log.Warn("client's request is invalid", "reason", err.Error())
		}
		return nil, err
	}
	for _, st := range r.GetClusterStats() {
		if e := over(limitNameBytes, max(len(st.GetClusterName()), len(st.GetClusterServiceName())), l.NameBytes, "a name of %d bytes"); e != nil {
			return nil, c.refuse(e)
		}
	}
	return r, nil
}

// client returns the client in the form that LoadReports gets.
func (c *loadCall) client(node *corev3.Node) LoadClient {
	who := Client{Node: node, Identity: c.in.identity, SecretsForAnyone: c.in.gate.door.newest.Load().secretsForAnyone}
	return LoadClient{Client: who, Account: identityKeyOf(c.grpc.Context(), c.in.identity), Enter: c.enter, Leave: c.leave}
}

// enter checks the scopes of the stream against the limits.
func (c *loadCall) enter(scope cache.Scope) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := over(limitScopes, len(c.scopes)+1, c.in.gate.limits.Scopes, "%d authorities and partitions on this stream"); e != nil {
		c.count(e)
		return e
	}
	if c.in.uses != nil {
		if e := c.in.uses.enter(scope, c.in.gate.perIdentity.Scopes); e != nil {
			c.count(e)
			return e
		}
	}
	c.scopes[scope] = struct{}{}
	return nil
}

func (c *loadCall) count(e *excess) { c.server.stats.limits[e.limit].Add(1) }

func (c *loadCall) leave(scope cache.Scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.scopes, scope)
	if c.in.uses != nil {
		c.in.uses.leave(scope)
	}
}

func (c *loadCall) log() *slog.Logger {
	return c.server.options.Log.With("client", addressOf(c.grpc.Context()))
}

// refuse records that the client exceeded a limit, and returns the error that ends its stream.
func (c *loadCall) refuse(e *excess) error {
	c.count(e)
	c.server.slowDown(c.grpc.Context(), c.in.identity)
	if log, ok := c.in.gate.line(eventLimit, c.log()); ok {
		logExcess(log, e)
	}
	return e
}
