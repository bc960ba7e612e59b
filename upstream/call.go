package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// One gRPC stream: the Stream's goroutine sends on it, and another goroutine receives.

// call is one gRPC stream. Stream.run makes one after another. serve starts receive, cancels
// ctx once attend has returned, and waits for ended. Stream.Close cancels the parent of ctx.
type call struct {
	form   *form
	ctx    context.Context
	cancel context.CancelCauseFunc

	opened chan struct{} // closed when stream is set
	ended  chan struct{} // closed when err is set, by the receiver
	stream grpc.ClientStream
	err    error // why it has ended; nil if it was no longer needed

	// The receiver uses these until it has ended.
	responded   bool      // there was a response
	respondedAt time.Time // when the first came
	unrequested int       // responses of types that were not requested

	// Stream.mu guards these: heard is the last question of a poll that was answered,
	// answered says that there was a response, of any type.
	heard    int
	answered bool
	// heardAt is when the last response came, of any type. Stream.mu guards it.
	heardAt time.Time

	// Only the sender uses these.
	announced bool     // the node was sent
	node      []byte   // encoded, once it was sent and if each request has it
	relays    []string // that were announced
}

// maxUnsent bounds the memory for answers that wait to be sent because the
// control plane sends and does not read. When it is exceeded, the stream ends. The receiver must
// not wait instead: some control planes do not read before they have sent.
const maxUnsent = 8 << 20

// parting is how long a control plane has to end a stream that is no longer needed,
// before the relay cancels the stream.
const parting = time.Second

// maxIdleFeeds bounds the types of which nothing is wanted any more, but which were requested on
// the stream. With more of them, the stream is ended and opened again as soon as renewals
// allows it, and with more than mostIdleFeeds at once.
const (
	maxIdleFeeds  = 64
	mostIdleFeeds = 64 * maxIdleFeeds
)

// refusedEvery is how often the log reports that names are not requested.
const refusedEvery = time.Minute

var (
	errRenew   = errors.New("a new stream is needed")
	errUnsent  = fmt.Errorf("the control plane does not read: answers of %d bytes are waiting", maxUnsent)
	errConnect = fmt.Errorf("no connection within %s", connectTimeout)
	errStuck   = errors.New("the control plane does not read: a request could not be sent for too long")
)

// ofRelay reports whether the control plane says that it is a relay. There has been a response.
func (c *call) ofRelay() bool {
	header, err := c.stream.Header()
	return err == nil && len(header.Get(chain.RelayHeader)) > 0
}

// serve opens a stream and keeps it until it fails or is not needed.
func (s *Stream) serve() *call {
	ctx, cancel := context.WithCancelCause(s.ctx)
	c := &call{
		form: s.form, ctx: ctx, cancel: cancel,
		opened: make(chan struct{}), ended: make(chan struct{}),
	}
	c.ctx = s.announceChain(ctx, c)
	go s.receive(c)
	err := s.attend(c)
	cause := context.Cause(ctx)
	cancel(nil)
	<-c.ended
	switch {
	case errors.Is(err, errDone):
		c.err = nil
	case err != nil:
		c.err = err
	case cause != nil:
		c.err = cause // the receiver has seen only a cancellation
	}
	return c
}

// errDone is what attend returns when the stream is no longer needed.
var errDone = errors.New("nothing is subscribed to any more")

// attend sends requests until the stream has ended.
func (s *Stream) attend(c *call) error {
	opened := c.opened
	timer := time.NewTimer(0)
	defer timer.Stop()
	connect := time.NewTimer(connectTimeout)
	defer connect.Stop()
	for {
		select {
		case <-opened:
			opened = nil
			connect.Stop()
		case <-connect.C:
			return errConnect
		case <-s.inbox.Awake():
		case <-timer.C:
		case <-c.ended:
			return nil
		}
		s.settle()
		wanted := s.takeNotes()
		if opened != nil {
			if !wanted {
				return errDone
			}
			timer.Reset(s.untilDue())
			continue
		}
		if !wanted {
			s.part(c)
			return errDone
		}
		next, err := s.write(c)
		if err != nil {
			return err
		}
		timer.Reset(next)
	}
}

// silence returns what the control plane's silence means. It does not count before the control
// plane has answered a poll for the current names. The caller holds mu.
func (c *call) silence() (what session.Silence, counts bool) {
	switch p, ok := c.stream.(interface{ question() int }); {
	case ok:
		return session.Polled, c.heard == p.question()
	case c.answered:
		return session.Selective, true
	}
	return session.Mute, true
}

// write sends all requests that are due. It returns the time until it must be called again.
func (s *Stream) write(c *call) (next time.Duration, err error) {
	for {
		out, next, err := s.collect(c)
		if err != nil || len(out) == 0 {
			return next, err
		}
		for _, m := range out {
			if err := s.send(c, m); err != nil {
				return next, err
			}
		}
	}
}

// collect returns the requests that are due.
func (s *Stream) collect(c *call) (out []proto.Message, next time.Duration, err error) {
	next = never
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if need, wait := s.renew(now); need {
		return nil, 0, errRenew
	} else {
		next = min(next, wait)
	}
	if need, wait := s.chainChanged(c, now); need {
		return nil, 0, errRenew
	} else {
		next = min(next, wait)
	}
	what, counts := c.silence()
	for _, f := range s.concerned(now) {
		s.deliver(delivery.Expired, f.topics, f.topics.Expire(now))
		if f.session == nil { // the stream has ended, or the feed waits for the next one
			s.schedule(f, false)
			continue
		}
		if counts {
			f.topics.Hear(c.heardAt)
			s.deliver(delivery.Silence, f.topics, f.session.Conclude(now, s.opts.ResponseTimeout, what))
		}
		s.logForgotten(f)
		if ok, again := s.gathered(f, now); !ok {
			s.agenda.add(f)
			next = min(next, again)
			continue
		}
		if ok, again := s.calmed(f, now); !ok {
			s.agenda.add(f)
			next = min(next, again)
			continue
		}
		if s.opts.Recall != nil && c.form.name == Delta && !f.session.Begun() {
			f.topics.Recall(s.opts.Recall)
		}
		requests := f.session.Requests(now, s.limit)
		out = append(out, requests...)
		s.refused(f, now)
		if what := f.session.Unfit(); what != "" {
			s.logUnfit(f, what)
		}
		s.schedule(f, counts)
		if s.recount(f); len(requests) > 0 {
			s.agenda.add(f) // there may be more
		}
	}
	if at, ok := s.agenda.due.Next(); ok {
		next = min(next, at.Sub(now))
	}
	if at, ok := s.dueQuarantine(); ok {
		next = min(next, at.Sub(now))
	}
	if s.agenda.sum.late > 0 { // a new stream is needed by now
		next = min(next, s.renewals.wait(now))
	}
	return out, next, nil
}

// calmed reports whether the answers of a type may be sent, and if not, after what time to call it
// again. The caller holds mu.
func (s *Stream) calmed(f *feed, now time.Time) (ok bool, again time.Duration) {
	again = f.calm.until.Sub(now)
	return again <= 0 || !f.session.Begun(), again
}

// refused applies the errors of names that do not fit into a request. The caller holds mu.
func (s *Stream) refused(f *feed, now time.Time) {
	u, n := f.topics.TakeRefusals()
	s.deliver(delivery.Refused, f.topics, u)
	if n > 0 && now.Sub(s.refusedAt) >= refusedEvery {
		s.refusedAt = now
		s.log.Warn("names are not requested, because a request has no room for them",
			"type_url", loglines.Clip(f.typeURL()), "names", n, "max_request_bytes", s.opts.MaxRequestBytes)
	}
}

// renew reports whether the stream must be opened again now because of what clients have requested,
// and if not, after what time it must. Until then the present stream goes on. The caller holds mu.
func (s *Stream) renew(now time.Time) (need bool, wait time.Duration) {
	// The sessions of idle types last as long as the stream, because the control plane may
	// still send responses of them.
	idle := s.agenda.sum.idle
	if idle <= maxIdleFeeds && s.agenda.sum.late == 0 {
		return false, never
	}
	if wait := s.renewals.wait(now); wait > 0 && idle <= mostIdleFeeds {
		return false, wait
	}
	s.renewals.took(now)
	return true, 0
}

// send sends one request. If the control plane does not read it, send ends the
// stream, because nothing else could be requested on it.
func (s *Stream) send(c *call, m proto.Message) error {
	if n := proto.Size(m); n > s.limit {
		// The names fit: the control plane's own version or nonce is too long.
		return fmt.Errorf("an answer to the control plane has %d bytes, with its version and nonce, and max_request_bytes allows %d", n, s.limit)
	}
	out, err := s.withNode(c, m)
	if err != nil {
		return err
	}
	stuck := time.AfterFunc(s.opts.ResponseTimeout, func() { c.cancel(errStuck) })
	defer stuck.Stop()
	err = c.stream.SendMsg(out)
	if errors.Is(err, io.EOF) {
		return nil // the receiver has ended or will, and has the reason
	}
	if context.Cause(c.ctx) != nil {
		return nil // the same
	}
	return err
}

// part unsubscribes from everything and closes a stream that is no longer needed.
func (s *Stream) part(c *call) {
	s.mu.Lock()
	var out []proto.Message
	for _, f := range s.sorted() {
		// A wildcard is not unsubscribed from. The relay would have to subscribe to it explicitly
		// first, and the control plane would send all of it again.
		if f.session != nil && !f.topics.Has(cache.Wildcard) {
			out = append(out, f.session.Requests(time.Now(), s.limit)...)
		}
	}
	s.mu.Unlock()
	for _, m := range out {
		if s.send(c, m) != nil {
			return
		}
	}
	if c.stream.CloseSend() != nil {
		return
	}
	timer := time.NewTimer(parting)
	defer timer.Stop()
	for {
		select {
		case <-c.ended:
			return
		case <-timer.C:
			return
		case <-s.inbox.Awake():
			s.mu.Lock()
			wanted := !s.inbox.Empty() || s.wanted()
			s.mu.Unlock()
			if wanted {
				return
			}
		}
	}
}

// receive opens the stream and receives until it ends.
func (s *Stream) receive(c *call) {
	defer close(c.ended)
	stream, err := s.conn.NewStream(c.ctx, streamDesc, c.form.method, grpc.ForceCodecV2(codec{}))
	if err != nil {
		c.err = err
		return
	}
	c.stream = stream
	s.begin(c)
	close(c.opened)
	for c.err == nil {
		var f frame
		if c.err = stream.RecvMsg(&f); c.err == nil {
			if c.err = s.response(c, &f); c.err != nil {
				c.cancel(c.err) // the sender may be waiting for the control plane
			}
			f.free()
			s.inbox.Wake()
		}
	}
}

// begin gives every type its session on the new stream.
func (s *Stream) begin(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = true
	forceAnswer := s.opts.ForceAnswer && s.down != nil // the control plane could not be reached
	s.down = nil
	for _, f := range s.sorted() {
		if s.opts.Seed != nil && c.form.name == Delta {
			f.topics.Seed(time.Now(), s.opts.Seed)
		}
		f.session, f.stale = c.form.begin(f.topics), false
		s.typeEvent(delivery.TypeOpened, f)
		if forceAnswer && f.session.ForceAnswer() {
			forceAnswer = false // one answer is enough
		}
	}
	s.concernAll()
	if c.form.name != REST {
		s.connected(c)
	}
}

// connected records that the control plane can be reached: a stream is open, or it
// has answered a poll. The caller holds mu.
func (s *Stream) connected(c *call) {
	s.setConnected(true)
	s.opts.peers.reached(s, false)
	s.event(delivery.Opened, "")
	s.own.Debug("stream to control plane is open", "protocol", string(c.form.name))
}

// response processes one response. An error ends the stream.
func (s *Stream) response(c *call, m *frame) error {
	receipt := &propagation.Receipt{At: time.Now()}
	r, err := m.parse(c.form)
	if err != nil {
		return err
	}
	if r != nil {
		if r.TypeURL == "" {
			r.TypeURL = c.form.typeURL
		}
		r.Receipt = receipt
		if s.opts.Tracer != nil {
			defer s.trace(r)()
		}
		s.taste(r)
		traceChecked(r)
		defer s.report(r)
	}
	return s.take(c, m, r)
}

// take processes a parsed response. r is nil if a poll has brought nothing new.
func (s *Stream) take(c *call, m *frame, r *session.Response) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return errDone // closed: the scope may have a new stream already
	}
	if m.poll != nil {
		c.heard = m.poll.question
		s.concernAll() // a poll is of one type, and its silence may count now
		if !c.responded {
			s.connected(c)
		}
	}
	if !c.responded {
		c.responded, c.respondedAt = true, time.Now()
		s.admitted.Store(true)
		s.relay = c.ofRelay()
		s.outage.End()
		s.outage = nil
		s.opts.peers.reached(s, true)
		s.opts.Presence.answered(s, c.form.name)
		s.opts.Presence.forms.answered(c.form)
		if s.opts.Nodes != nil {
			s.opts.Nodes.Answered(s.node)
		}
		s.event(delivery.Responded, "")
		if m.poll == nil {
			s.answered(c)
		}
	}
	if r == nil {
		return nil // silence counts from now on
	}
	s.board.post(func(st *Status) {
		st.Responses++
		st.ResourceErrors += uint64(len(r.Errors))
	})
	if n := s.opts.ResourceErrors; n != nil {
		n.Add(uint64(len(r.Errors)))
	}
	f := s.feeds[r.TypeURL]
	if f != nil && f.stale && f.session == nil {
		return nil // it is for names that have moved; there will be another stream
	}
	if f == nil || f.session == nil || !f.session.Begun() {
		s.ignoreUnrequested(c, r)
		return nil
	}
	if !f.topics.Answered() {
		s.typeEvent(delivery.TypeAnswered, f)
	}
	if c.form.name == SotW && f.topics.Names != nil {
		s.typeEvent(delivery.NamesAnswered, f)
	}
	c.heardAt = time.Now()
	s.heard(f)
	s.restless = s.isStrict(c.form)
	first := !f.topics.Answered()
	u, nack := f.session.Response(time.Now(), r)
	u.Receipt = r.Receipt
	// The strings are parts of the response, which may be large.
	u.Receipt.Server = s.server()
	u.Receipt.Version, u.Receipt.Nonce, u.Receipt.Number = strings.Clone(shown(r.Version)), strings.Clone(shown(r.Nonce)), f.topics.Responses()
	if first {
		s.overtake(f)
	}
	if xdstype.Of(r.TypeURL) == xdstype.Cluster {
		s.clustersChanged(f)
	}
	s.deliver(delivery.Response, f.topics, u)
	if s.opts.typeAnswered != nil && f.topics.Responses() == 1 {
		s.opts.typeAnswered(f.typeURL())
	}
	s.logVariants(f)
	s.logIgnored(f, r)
	if nack != "" {
		s.board.post(func(st *Status) { st.Nacks++ })
		s.logNack(f, r, nack)
	}
	f.lastNack = nack
	traceAnswer(r.Receipt, nack)
	f.calm.answered(time.Now(), r.Version, nack)
	if s.concern(f); s.agenda.sum.unsent > maxUnsent {
		return errUnsent
	}
	return nil
}

// heard tells the types to which a response of another type matters that there was one. The caller holds mu.
func (s *Stream) heard(of *feed) {
	if s.agenda.sum.listens == 0 {
		return
	}
	now := time.Now()
	for _, f := range s.feeds {
		if f != of && f.session != nil && f.topics.Listens() {
			f.session.Heard(now)
			s.agenda.add(f)
		}
	}
}

// clustersChanged passes Clusters that the control plane has sent to the sessions of endpoints. The caller holds mu.
func (s *Stream) clustersChanged(clusters *feed) {
	for _, typeURL := range [...]string{xdstype.EndpointsV3, xdstype.EndpointsV2} {
		if f := s.feeds[typeURL]; f != nil && f.session != nil && f.session.ClustersChanged(time.Now(), clusters.topics) {
			s.concern(f)
		}
	}
}

// restlessness is how long after a response of a strict control plane no names begin to linger. Clients react to the
// response meanwhile.
const restlessness = 2 * time.Second

// isStrict reports whether the control plane may answer only requests of which it has every name.
func (s *Stream) isStrict(f *form) bool {
	return f.name == SotW && s.isAggregated() && s.opts.DropIdle != nil && s.opts.Presence != nil && s.opts.Presence.habits.Strict(s.opts.Answers)
}

// settle drops the names that linger after a response of a strict control plane: when such a control plane changes its
// state, it may not have them any more.
func (s *Stream) settle() {
	s.mu.Lock()
	restless := s.restless
	s.restless = false
	s.mu.Unlock()
	if restless {
		s.opts.DropIdle(s.scope, restlessness)
	}
}

// overtake tells the other types that the control plane has answered one for the first time on the stream. The
// caller holds mu.
func (s *Stream) overtake(by *feed) {
	now := time.Now()
	for _, f := range s.feeds {
		if f != by && f.session != nil && f.topics.Overtaken(now, by.topics) {
			s.agenda.add(f)
		}
	}
}

// answered records the first response of a stream. The response timeout of unanswered subscriptions
// starts again: until now the control plane's silence meant nothing. The caller holds mu.
func (s *Stream) answered(c *call) {
	c.answered = true
	now := time.Now()
	for _, f := range s.feeds {
		f.topics.WaitAgain(now)
	}
	s.concernAll()
}

// ignoreUnrequested logs a response of a type that was not requested. The relay sends no ACK or
// NACK: that would be the first request of its type, and as it has no
// names it would subscribe to everything. The caller holds mu.
func (s *Stream) ignoreUnrequested(c *call, r *session.Response) {
	log, level := s.log, slog.LevelDebug
	if c.unrequested++; c.unrequested == 1 {
		log, level = bounded(&s.lines.unrequested, s.log)
	}
	log.Log(s.ctx, level, "response ignored: its type was not requested", "type_url", shown(r.TypeURL), "nonce", shown(r.Nonce))
}
