package upstream

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
)

// trial is a Stream that requests suspects.
type trial struct {
	stream *Stream
	batch  *batch                 // nil for what is known to be bad
	keys   map[cache.Key]struct{} // without an answer
	left   []cache.Key            // suspects whose clients have left meanwhile
	began  time.Time

	// mu is held while the trial delivers something. It comes before the receiver's locks. Who holds Stream.mu does not
	// wait for it.
	mu sync.Mutex
	// feeds has the suspects of which the trial delivers what it hears: not those that are back on the Stream, which may
	// have something newer.
	feeds    map[cache.Key]struct{}
	answered []cache.Key
	end      error // nil as long as it has not ended
	renoded  bool  // perhaps because of its Node, and the next trial has another
}

func isOutage(err *cache.Error) bool { return err != nil && err.Code == codes.Unavailable }

// trialReceiver hears a trial's Stream, and passes on what the control plane says.
type trialReceiver struct {
	trial *trial
	of    *Stream
}

// Deliver implements delivery.Receiver.
func (r trialReceiver) Deliver(e delivery.Event) {
	if e.Kind == delivery.Delivered && r.trial.deliver(e, r.of.to) {
		r.of.inbox.Wake()
	}
}

// deliver delivers what the control plane says of the suspects that the trial feeds, and reports whether that is anything.
func (t *trial) deliver(e delivery.Event, to delivery.Receiver) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	said := e.Types[:0:0]
	for _, u := range e.Types {
		u.Changes = slices.DeleteFunc(slices.Clone(u.Changes), func(c cache.Change) bool { return isOutage(c.Err) || !t.answers(&u, c.Name) })
		u.Sets = slices.DeleteFunc(slices.Clone(u.Sets), func(c cache.SetUpdate) bool { return isOutage(c.Err) || !t.answers(&u, c.Name) })
		if len(u.Changes)+len(u.Sets) > 0 {
			said = append(said, u)
		}
	}
	if len(said) == 0 {
		return false
	}
	e.Types = said
	to.Deliver(e)
	return true
}

// answers notes that the control plane has answered a topic, if the trial feeds it, and reports whether it does. The
// caller holds mu.
func (t *trial) answers(u *cache.Update, name string) bool {
	k := cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: name}
	_, fed := t.feeds[k]
	if fed {
		t.answered = append(t.answered, k)
	}
	return fed
}

// attendTrial is attendQuarantine for one trial. The caller also holds the trial's mu.
func (s *Stream) attendTrial(now time.Time, t *trial) (back []note) {
	q := &s.quarantine
	for _, k := range t.answered {
		if _, waits := t.keys[k]; waits {
			delete(t.keys, k)
			delete(t.feeds, k)
			back = append(back, note{key: k, back: true, tried: true})
			s.admitted.Store(true)
			q.pace.reset()
			q.outage.reset()
			q.excused = false
		}
	}
	t.answered = nil
	switch {
	case t.end != nil:
		s.endTrial(t)
		back = append(back, s.judge(now, t, t.end)...)
	case len(t.keys) == 0:
		s.endTrial(t)
	case now.Sub(t.began) >= acquittal && t.stream.Status().Connected:
		s.endTrial(t)
		t.feeds = nil
		for k := range t.keys {
			back = append(back, q.returning(k)...)
		}
	}
	return back
}

// beginTrial tries suspects. The caller holds mu.
func (s *Stream) beginTrial(now time.Time, keys []cache.Key, b *batch) {
	q := &s.quarantine
	q.spent = later(q.spent, now).Add(trialEvery)
	q.next = now.Add(trialPace)
	t := &trial{batch: b, keys: map[cache.Key]struct{}{}, feeds: map[cache.Key]struct{}{}, began: now}
	for _, k := range keys {
		t.keys[k], t.feeds[k] = struct{}{}, struct{}{}
		q.suspects[k].trial = t
	}
	o := s.opts
	o.watch = func(delivery.Event) {} // whether the server can be reached, the other streams tell
	o.typeAnswered, o.typesBlamed, o.noQuarantine = nil, nil, true
	o.peers, o.Presence = new(peers), NewPresence("", slog.New(slog.DiscardHandler))
	if p := s.opts.Presence; p != nil {
		o.Presence.server = p.server
		o.Presence.forms.inherit(&p.forms)
	}
	o.trialEnded = func(err error, renoded bool) {
		t.mu.Lock()
		t.end, t.renoded = err, renoded
		t.mu.Unlock()
		s.inbox.Wake()
	}
	t.stream = newStream([]*form{s.form}, s.scope, s.conn, s.node, o, trialReceiver{t, s}, s.log.With("stream", "quarantine"))
	for _, k := range keys {
		if t.stream.Start(k); q.suspects[k].resumed {
			t.stream.Resume(k)
		}
	}
	q.trials = append(q.trials, t)
}

// endTrial closes a trial. The caller holds mu.
func (s *Stream) endTrial(t *trial) {
	q := &s.quarantine
	q.trials = slices.DeleteFunc(q.trials, func(other *trial) bool { return other == t })
	for k := range t.keys {
		if x := q.suspects[k]; x != nil {
			x.trial = nil
		}
	}
	t.stream.Close() // at once: the Stream may bring something newer
	q.closing.Go(func() { <-t.stream.Done() })
}
