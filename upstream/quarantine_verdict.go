package upstream

import (
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// endsForRequest reports whether a control plane has ended a stream by itself, and perhaps because of a request.
func endsForRequest(err error) bool {
	switch code, ok := codeOf(err); code {
	case codes.OK, codes.Canceled, codes.Unavailable, codes.DeadlineExceeded, codes.Unimplemented:
		return false
	default:
		return ok
	}
}

// codeOf returns the code with which a control plane has ended a stream. It is not ok if the control plane has not.
func codeOf(err error) (code codes.Code, ok bool) {
	if poll, is := errors.AsType[*pollError](err); is {
		return poll.code(), true
	}
	st, ok := status.FromError(err)
	return st.Code(), ok && !errors.Is(err, io.EOF)
}

// admits reports whether a control plane has admitted the relay, and the Node, on a stream that it has ended.
func admits(c *call) bool { return c.responded || !isDenial(c.err) }

// isDenial reports whether a control plane has ended a stream because it does not admit the relay, the Node, or what is
// requested.
func isDenial(err error) bool {
	code, _ := codeOf(err)
	return code == codes.PermissionDenied || code == codes.Unauthenticated
}

// judge draws the conclusions from a trial that has ended. It returns the topics that go back to the stream. The caller
// holds mu.
func (s *Stream) judge(now time.Time, t *trial, end error) (back []note) {
	q := &s.quarantine
	keys := make([]cache.Key, 0, len(t.keys))
	for k := range t.keys {
		if q.suspects[k] != nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, compareKeys)
	retried := len(keys) == 1 && q.suspects[keys[0]].alone
	if retried {
		q.nextRetry = now.Add(q.pace.delay())
	}
	if t.renoded && !q.excused { // once, it says nothing of what was requested
		if q.excused = true; len(keys) > 0 && !retried {
			q.put(t.batch, keys)
		}
		return nil
	}
	if !endsForRequest(end) { // it could not be tried
		if t.began.After(q.failed) { // not once more for those that have failed with it
			q.failed = now
			q.next = now.Add(q.outage.delay())
		}
		keys = slices.DeleteFunc(keys, func(k cache.Key) bool {
			untried := q.suspects[k].untried
			if untried { // it has done nothing, and the Stream tells its clients of an outage
				back = append(back, q.returning(k)...)
			}
			return untried
		})
		if len(keys) > 0 && !retried {
			q.put(t.batch, keys)
		}
		return back
	}
	q.outage.reset()
	company := len(keys) + len(t.left)
	for _, k := range keys {
		x := q.suspects[k]
		q.blame(x)
		if x.company == 0 || x.company > company {
			x.company = company
		}
	}
	for _, k := range t.left {
		if q.suspects[k] == nil {
			q.remember(k, company, now)
		}
	}
	switch {
	case len(keys) == 0:
	case len(t.left) > 0:
		q.put(t.batch, keys) // what has left may be why
	case len(keys) > 1:
		for part := range slices.Chunk(keys, (len(keys)+trialParts-1)/trialParts) {
			q.put(t.batch, part)
		}
	default:
		k, x := keys[0], q.suspects[keys[0]]
		x.reason, q.newest = Reason(end), k
		q.deny(x, isDenial(end) && !s.admitted.Load())
		if x.alone || !x.denied {
			s.convict(now, k)
		} else {
			q.unjudged = append(q.unjudged, k)
		}
	}
	return back
}

// judgeDenied decides, once all suspects have been tried, about those that were denied. It returns the topics that go back
// to the stream, and are suspects no longer. The caller holds mu.
func (s *Stream) judgeDenied(now time.Time) (back []note) {
	q := &s.quarantine
	unjudged := q.unjudged
	q.unjudged = nil
	if q.denials == 0 {
		return nil
	}
	if q.denials < len(q.suspects) || s.admitted.Load() {
		for _, k := range unjudged {
			if x := q.suspects[k]; x != nil && x.denied && !x.alone {
				s.convict(now, k)
			}
		}
		return nil
	}
	if q.denied == nil {
		q.denied = map[cache.Key]struct{}{}
	}
	for _, k := range slices.SortedFunc(maps.Keys(q.suspects), compareKeys) {
		back = append(back, q.returning(k)...)
		q.remove(k)
		q.denied[k] = struct{}{}
	}
	return back
}

// convict notes that a topic, alone, ends streams. Its clients hear why. The caller holds mu.
func (s *Stream) convict(now time.Time, k cache.Key) {
	x := s.quarantine.suspects[k]
	first := !x.alone
	x.alone = true
	s.touchyUntil.Store(now.Add(touchyFor).UnixNano())
	s.quarantine.retries.Set(k, now.Add(x.backoff.delay()))
	if log, ok := s.quarantine.lines.Next(s.own); ok && first {
		log.Warn("control plane ends each stream on which this is requested: it is requested alone", "type_url", shown(k.TypeURL), "name", shown(k.Name), "reason", x.reason)
	}
	s.deliverReason(k, x.reason)
}

// deliverReason gives the clients of a topic that ends streams the control plane's words as its error. The caller holds mu.
func (s *Stream) deliverReason(k cache.Key, why string) {
	err := &cache.Error{Code: codes.Unavailable, Message: loglines.Clip("the control plane ends the stream when this is requested: " + why)}
	u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	if session.IsSet(k.Name) {
		u.Sets = []cache.SetUpdate{{Name: k.Name, Err: err}}
	} else {
		u.Changes = []cache.Change{{Name: k.Name, Err: err}}
	}
	s.to.Deliver(delivery.Event{Delivery: delivery.Delivery{Cause: delivery.Refused, Types: []cache.Update{u}}})
}

// resendQuarantine does the work of Resend for the suspects. The caller holds mu.
func (s *Stream) resendQuarantine() {
	for k, x := range s.quarantine.suspects {
		if x.alone {
			s.deliverReason(k, x.reason)
		}
	}
}
