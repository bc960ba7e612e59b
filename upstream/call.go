package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/propagation"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// One gRPC stream: the Stream's goroutine sends, another one receives.

// call is one gRPC stream. Stream.run makes one after another. serve starts receive, cancels
// ctx once attend has returned, and waits for ended. Stream.Close cancels the parent of ctx.
type call struct {
	form   *form
	ctx    context.Context
	cancel context.CancelCauseFunc

	opened chan struct{} // closed when stream is set
	ended  chan struct{} // closed when err is set, by the receiver
	stream grpc.ClientStream
	err    error // why it has ended; nil if it was not needed any more

	// Of the receiver, until it has ended.
	responded   bool // there was a response
	unrequested int  // responses of types that were not requested

	// Stream.mu guards these: heard is the last question of a poll that was answered,
	// answered says that there was a response, of whichever type.
	heard    int
	answered bool

	// Of the sender.
	announced bool     // the node was sent
	relays    []string // that were announced
}

// maxUnsent bounds the memory for answers that wait to be sent, because the
// control plane sends and does not read. It must not make the receiver wait:
// there are control planes that do not read before they have sent.
const maxUnsent = 8 << 20

// parting is how long a control plane has to end a stream that is not needed any
// more, before it is cancelled.
const parting = time.Second

// maxIdleFeeds bounds the types that a stream has been used for and is not any
// more. With more, it is ended and opened again: when that may be, and with
// mostIdleFeeds at once.
const (
	maxIdleFeeds  = 64
	mostIdleFeeds = 64 * maxIdleFeeds
)

// largeResponse is from how many bytes on a response is announced to Options.LargeResponse.
const largeResponse = 1 << 20

// refusedEvery is how often names are logged that are not asked for.
const refusedEvery = time.Minute

var (
	errRenew   = errors.New("a new stream is needed")
	errUnsent  = fmt.Errorf("the control plane does not read: answers of %d bytes are waiting", maxUnsent)
	errConnect = fmt.Errorf("no connection within %s", connectTimeout)
	errStuck   = errors.New("the control plane does not read: a request could not be sent for too long")
)

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
		c.err = cause // which the receiver knows only as a cancellation
	}
	return c
}

// errDone is what attend returns of a stream that is not needed any more.
var errDone = errors.New("nothing is subscribed to any more")

// attend sends what there is to be sent, until the stream has ended.
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

// silence says what the control plane's silence is. It does not count as long as a
// poll for what is wanted now has had no answer. The caller holds mu.
func (c *call) silence() (what session.Silence, counts bool) {
	switch p, ok := c.stream.(interface{ question() int }); {
	case ok:
		return session.Polled, c.heard == p.question()
	case c.answered:
		return session.Selective, true
	}
	return session.Mute, true
}

// write sends all that there is to be sent. It returns after what time somebody
// will have waited too long for an answer.
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

// collect returns what is to be sent now.
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
		s.apply(f.topics, f.topics.Expire(now))
		if f.session == nil { // the stream has ended, or the next is waited for
			s.schedule(f, false)
			continue
		}
		if counts {
			s.apply(f.topics, f.session.Conclude(now, s.opts.ResponseTimeout, what))
		}
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
	if s.agenda.sum.late > 0 { // which the time has brought about
		next = min(next, s.renewals.wait(now))
	}
	return out, next, nil
}

// calmed reports whether the answers of a type may be sent, or after what time to ask again. The caller
// holds mu.
func (s *Stream) calmed(f *feed, now time.Time) (ok bool, again time.Duration) {
	again = f.calm.until.Sub(now)
	return again <= 0 || !f.session.Begun(), again
}

// refused applies that names do not fit into a request. The caller holds mu.
func (s *Stream) refused(f *feed, now time.Time) {
	u, n := f.topics.TakeRefusals()
	s.apply(f.topics, u)
	if n > 0 && now.Sub(s.refusedAt) >= refusedEvery {
		s.refusedAt = now
		s.log.Warn("names are not asked for, because a request has no room for them",
			"type_url", loglines.Clip(f.typeURL()), "names", n, "max_request_bytes", s.opts.MaxRequestBytes)
	}
}

// renew says that a new stream is needed for what clients wish, or in what time it will
// be. What is asked for on this one goes on meanwhile. The caller holds mu.
func (s *Stream) renew(now time.Time) (need bool, wait time.Duration) {
	// The sessions of idle types last as long as the stream, for the control plane may
	// still speak of them.
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

// send sends one request. One that the control plane does not read ends the
// stream: meanwhile nothing else could be asked for.
func (s *Stream) send(c *call, m proto.Message) error {
	if n := proto.Size(m); n > s.limit {
		// What is asked for fits: it is the control plane's own version or nonce.
		return fmt.Errorf("an answer to the control plane has %d bytes, with its version and nonce, and max_request_bytes allows %d", n, s.limit)
	}
	if !c.announced {
		c.announced = true
		switch m := m.(type) {
		case *discoveryv3.DeltaDiscoveryRequest:
			m.Node = s.node
		case *discoveryv3.DiscoveryRequest:
			m.Node = s.node
		}
	}
	stuck := time.AfterFunc(s.opts.ResponseTimeout, func() { c.cancel(errStuck) })
	defer stuck.Stop()
	err := c.stream.SendMsg(m)
	if errors.Is(err, io.EOF) {
		return nil // the receiver has ended or will, and knows why
	}
	if context.Cause(c.ctx) != nil {
		return nil // likewise
	}
	return err
}

// part takes leave of a control plane of which nothing is wanted any more.
func (s *Stream) part(c *call) {
	s.mu.Lock()
	var out []proto.Message
	for _, f := range s.sorted() {
		// A wildcard is not given up in so many words: made explicit first, as it
		// has to be, it would all be sent once more.
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
	forceAnswer := s.opts.ForceAnswer && s.down != nil // it could not be reached
	s.down = nil
	for _, f := range s.sorted() {
		if s.opts.Seed != nil && c.form.name == Delta {
			f.topics.Seed(time.Now(), s.opts.Seed)
		}
		f.session, f.stale = c.form.begin(f.topics), false
		if l := s.opts.Links; l != nil {
			l.Opened(f.typeURL())
		}
		if forceAnswer && f.session.ForceAnswer() {
			forceAnswer = false // one answer is enough
		}
	}
	s.concernAll()
	if c.form.name != REST {
		s.connected(c)
	}
}

// connected takes note that the control plane is there: a stream is open, or it
// has answered a poll. The caller holds mu.
func (s *Stream) connected(c *call) {
	s.setConnected(true)
	s.opts.peers.reached(s, false)
	s.event(Opened, "")
	s.own.Debug("stream to control plane is open", "protocol", string(c.form.name))
}

// response takes one response. It returns why the stream cannot go on.
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
		if s.opts.LargeResponse != nil && r.Size >= largeResponse {
			s.opts.LargeResponse(r.Size)
		}
		if s.opts.Tracer != nil {
			defer s.trace(r)()
		}
		s.taste(r)
		traceChecked(r)
		defer s.report(r)
	}
	return s.take(c, m, r)
}

// take is response, of which r was parsed, nil for the silence of a control plane that is polled.
func (s *Stream) take(c *call, m *frame, r *session.Response) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return errDone // closed: the scope may have a new stream already
	}
	if m.poll != nil {
		c.heard = m.poll.question
		s.concernAll() // it is one type, and whether its silence counts may have changed
		if !c.responded {
			s.connected(c)
		}
	}
	if !c.responded {
		c.responded = true
		s.learnRelay(c)
		s.outage.End()
		s.outage = nil
		s.opts.peers.reached(s, true)
		s.opts.Presence.answered(s, c.form.name)
		s.opts.Presence.forms.answered(c.form)
		s.event(Responded, "")
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
		return nil // it is for names that have moved, and there will be another stream
	}
	if f == nil || f.session == nil || !f.session.Begun() {
		s.ignoreUnrequested(c, r)
		return nil
	}
	if s.opts.Links != nil && !f.topics.Answered() {
		s.opts.Links.Answered(f.typeURL())
	}
	u, nack := f.session.Response(time.Now(), r)
	u.Receipt = r.Receipt
	s.apply(f.topics, u)
	if s.opts.typeAnswered != nil && f.topics.Responses() == 1 {
		s.opts.typeAnswered(f.typeURL())
	}
	s.logVariants(f)
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

// learnRelay learns from a stream's headers whether the control plane is a relay. There was a response,
// so they have come. The caller holds mu.
func (s *Stream) learnRelay(c *call) {
	headers, err := c.stream.Header()
	s.ofRelay = err == nil && len(headers.Get(chain.RelayHeader)) > 0
}

// answered takes note of the first response of a stream. What is without an answer
// waits from now on: until then the control plane's silence says nothing. The caller
// holds mu.
func (s *Stream) answered(c *call) {
	c.answered = true
	now := time.Now()
	for _, f := range s.feeds {
		f.topics.WaitAgain(now)
	}
	s.concernAll()
}

// ignoreUnrequested takes note of a response of a type that was not requested. It is not
// answered: an answer would be the first request of its type, and having no
// names it would subscribe to everything. The caller holds mu.
func (s *Stream) ignoreUnrequested(c *call, r *session.Response) {
	log, level := s.log, slog.LevelDebug
	if c.unrequested++; c.unrequested == 1 {
		log, level = bounded(&s.lines.unrequested, s.log)
	}
	log.Log(s.ctx, level, "response ignored: its type was not asked for", "type_url", shown(r.TypeURL), "nonce", shown(r.Nonce))
}
