package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/inbox"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// The goroutine of a Stream opens one gRPC stream after another (see call.go). When one has ended,
// it decides what happens to the topics.

// newStream begins to feed a scope: see [NewAggregated].
func newStream(forms []*form, scope cache.Scope, conn grpc.ClientConnInterface, node *corev3.Node, o Options, to delivery.Receiver, log *slog.Logger) *Stream {
	const header = 64
	o = o.withDefaults()
	s := &Stream{
		scope: scope,
		conn:  conn,
		node:  node,
		opts:  o,
		limit: o.MaxRequestBytes - proto.Size(node) - header,
		to:    to,
		log:   log,
		own:   log,
		forms: forms,
		done:  make(chan struct{}),
		left:  make(chan struct{}, 1),
		inbox: inbox.New[note](),
		feeds: map[string]*feed{},

		admitted: new(atomic.Bool), touchyUntil: new(atomic.Int64),
	}
	s.speak(o.Presence.forms.first(forms))
	if typeURL := forms[0].typeURL; typeURL != "" {
		s.own = log.With("type_url", typeURL)
	}
	s.backoff = backoff{base: o.BackoffBase, limit: o.BackoffMax}
	s.quarantine.pace = backoff{base: retryPace, limit: o.BackoffMax}
	s.quarantine.outage = s.quarantine.pace
	s.renewals = pace{base: max(o.BackoffBase, shortestRenewal), limit: max(o.BackoffMax, shortestRenewal)}
	s.board.status.Since = time.Now()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	o.peers.join(s)
	go s.run()
	return s
}

// run opens a gRPC stream whenever there is something to subscribe to.
func (s *Stream) run() {
	defer close(s.done)
	defer s.watchChain()()
	defer s.watchNodes()()
	defer s.opts.peers.leave(s)
	defer s.opts.Presence.leaves(s)
	for s.await() {
		s.takeNode()
		s.ended(s.serve())
	}
	if b := s.namesStream; b != nil {
		<-b.done
	}
	s.mu.Lock()
	for _, t := range slices.Clone(s.quarantine.trials) {
		s.endTrial(t)
	}
	s.mu.Unlock()
	s.quarantine.closing.Wait()
}

// await waits until a gRPC stream must be opened. It returns false if the Stream was closed.
func (s *Stream) await() bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if s.takeNotes() {
			wait := time.Until(s.retryAt)
			if wait <= 0 {
				return s.ctx.Err() == nil
			}
			timer.Reset(min(wait, s.untilDue()))
		} else {
			s.opts.Presence.rests(s)
			timer.Reset(s.untilDue())
		}
		select {
		case <-timer.C:
		case <-s.inbox.Awake():
		case <-s.ctx.Done():
			return false
		}
	}
}

// takeNotes processes the notes of Start, Stop and the like, and reports whether anything is
// wanted. It processes the notes of a burst together.
func (s *Stream) takeNotes() (wanted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	notes := s.inbox.Take()
	s.taken++
	s.forgive()
	w := newNoted(s)
	resend := false
	for _, n := range notes {
		switch {
		case n.resend:
			resend = true
		case n.retry:
			s.retryNow(!n.open)
		case n.renode:
			s.renodeSoon()
		default:
			w.take(n)
		}
	}
	for _, n := range s.attendQuarantine(time.Now()) {
		w.take(n)
	}
	w.done()
	if resend {
		s.resendAll()
	}
	if !s.live {
		s.attendOffline(time.Now())
	}
	if len(notes) > 0 {
		s.count()
	}
	return s.wanted()
}

// retryNow ends the wait for the next attempt, because another stream has reached the control
// plane. If that stream is only open, the control plane may still refuse it (certain is false):
// then this stream retries at most every BackoffMax, lest two streams wake each other without end.
// The caller holds mu.
func (s *Stream) retryNow(certain bool) {
	now := time.Now()
	if s.live || !now.Before(s.retryAt) || !certain && now.Sub(s.retried) < s.opts.BackoffMax {
		return
	}
	s.retryAt, s.retried = time.Time{}, now
	s.forgetFailure()
}

// forgetFailure lets topics that start wait for the next stream. The caller holds mu.
func (s *Stream) forgetFailure() {
	s.down = nil
	for _, f := range s.feeds {
		f.topics.ForgetFailures()
	}
}

// resendAll does the work of Resend. The caller holds mu.
func (s *Stream) resendAll() {
	for _, f := range s.sorted() {
		s.deliver(delivery.Restated, f.topics, f.topics.Resend())
	}
	s.resendQuarantine()
	if b := s.namesStream; b != nil {
		b.Resend()
	}
}

// attendOffline does the work that is due without a gRPC stream. The caller holds mu.
func (s *Stream) attendOffline(now time.Time) {
	for _, f := range s.concerned(now) {
		s.deliver(delivery.Expired, f.topics, f.topics.Expire(now))
		if f.wanted() == 0 {
			s.remove(f)
			continue
		}
		s.schedule(f, false)
	}
}

// untilDue returns the time until a type is due by time alone, at most never.
func (s *Stream) untilDue() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := never
	if at, ok := s.agenda.due.Next(); ok {
		next = min(next, time.Until(at))
	}
	if at, ok := s.dueQuarantine(); ok {
		next = min(next, time.Until(at))
	}
	return next
}

// ended records the end of a gRPC stream, and decides what comes next.
func (s *Stream) ended(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = false
	select {
	case s.left <- struct{}{}:
	default:
	}
	s.setConnected(false)
	s.endedAt = time.Now()
	if s.opts.Nodes != nil && c.responded {
		s.opts.Nodes.Lost(s.node)
	}
	loops := s.loops(c)
	renoded := !loops && s.renoded < maxInnocent && s.renode(c)
	blamed := loops || !renoded && s.blame(c)
	var suspects []cache.Key
	if c.responded && time.Since(c.respondedAt) > shortLived {
		s.quarantine.streak = 0
	}
	if !renoded && !blamed {
		if suspects = s.suspect(c); len(suspects) == 0 {
			renoded = s.renode(c)
		}
	}
	if s.opts.trialEnded != nil && c.err != nil {
		s.opts.trialEnded(c.err, renoded)
	}
	for _, f := range s.feeds {
		f.session, f.stale = nil, false
		s.typeEvent(delivery.TypeLost, f)
		if f.topics.Lost(); f.wanted() == 0 {
			s.remove(f)
		} else {
			s.concern(f)
		}
	}
	s.isolate(suspects)
	if c.responded {
		s.backoff.reset()
		s.swapped, s.renoded = false, 0
	}
	switch err := c.err; {
	case err == nil, blamed, errors.Is(err, errRenew), s.ctx.Err() != nil:
		s.event(delivery.Ended, "")
		s.opts.Presence.rests(s)
		return
	case len(s.forms) > 1 && !c.responded && status.Code(err) == codes.Unimplemented:
		s.noteFailure(Reason(err))
		s.change(s.other(c.form))
		if s.opts.Presence.forms.found(c.form) {
			s.own.Info("control plane does not implement this form, using the other", "server", s.opts.Presence.server,
				"protocol", string(c.form.name), "instead", string(s.form.name), "reason", Reason(err))
		}
		if !s.swapped {
			s.swapped = true
			return
		}
		s.swapped = false // neither form: perhaps a proxy on the way has answered
		s.change(s.forms[0])
		fallthrough
	default:
		wait := s.backoff.delay()
		hurries := renoded && s.renoded <= mostHurried
		if hurries {
			wait = min(wait, nodePace)
		}
		s.retryAt = time.Now().Add(wait)
		s.lost(c, Reason(err), wait, hurries)
	}
}

// blame passes to typesBlamed the types that were requested on the ended stream and were never
// answered. It returns whether they get streams of their own, so that this one can be opened again
// without them. The caller holds mu, and the feeds still have their sessions.
func (s *Stream) blame(c *call) bool {
	if s.opts.typesBlamed == nil || c.err == nil || s.ctx.Err() != nil || !blamesRequest(c.err) {
		return false
	}
	var types []string
	for _, f := range s.sorted() {
		if f.begun() && f.topics.Responses() == 0 {
			types = append(types, f.typeURL())
		}
	}
	return len(types) > 0 && s.opts.typesBlamed(types, Reason(c.err))
}

// change sets the form that the next stream speaks. The caller holds mu.
func (s *Stream) change(f *form) {
	s.speak(f)
	s.separateNames()
}

// other returns the other one of two forms.
func (s *Stream) other(than *form) *form {
	if than == s.forms[0] {
		return s.forms[1]
	}
	return s.forms[0]
}

// lost reports to the operator why the stream was lost, and sends an error to the topics that
// wait for an answer if there was no response, unless the next stream has another Node and hurries.
// The caller holds mu.
func (s *Stream) lost(c *call, reason string, wait time.Duration, hurries bool) {
	s.noteFailure(reason)
	s.own.Debug("stream to control plane has ended", "reason", reason, "retry_in", wait)
	s.opts.Presence.lost(s, reason, c.responded)
	if c.responded || hurries {
		// gRFC A57: "Handling ADS Stream Termination". Servers end streams now and
		// then, which is no error for clients.
		s.event(delivery.Lost, reason)
		return
	}
	s.event(delivery.Failed, reason)
	if s.outage == nil {
		s.outage = new(cache.Outage)
	}
	s.down = &cache.Error{
		Outage:  s.outage,
		Code:    codes.Unavailable,
		Message: loglines.Clip(fmt.Sprintf("control plane of %s cannot be reached: %s", s.scope, reason)),
	}
	for _, f := range s.sorted() {
		u := f.topics.NewUpdate()
		f.topics.Failed(s.down, &u)
		s.deliver(delivery.Outage, f.topics, u)
	}
}

// Drain waits, for a limited time, until the Stream has unsubscribed from everything at the
// control plane. Callers use it between the last Stop and Close.
func (s *Stream) Drain() {
	s.mu.Lock()
	b := s.namesStream
	s.mu.Unlock()
	if b != nil {
		left := make(chan struct{})
		go func() { defer close(left); b.Drain() }()
		defer func() { <-left }()
	}
	patience := time.NewTimer(2 * parting)
	defer patience.Stop()
	for {
		s.mu.Lock()
		live := s.live
		s.mu.Unlock()
		if !live {
			return
		}
		select {
		case <-s.left:
		case <-s.done:
			return
		case <-patience.C:
			return
		}
	}
}
