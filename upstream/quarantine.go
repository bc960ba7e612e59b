package upstream

import (
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// A control plane may end a stream because of one name, wildcard or glob on it. All clients of the scope share the
// stream. So what was requested on a stream that the control plane has ended, and was never answered, is suspect:
//
//	the Stream     requests everything but the suspects, and is open again after one reconnect
//	a trial        another Stream, one at a time, that requests some suspects. If the control plane ends it, trials of
//	               the quarters follow, after those of the other parts. So what is good does not wait until all that is
//	               bad and sorts before it was found. What has become suspect at another time takes turns with it
//	answered       a suspect goes back to the Stream, also if the control plane does not end the trial soon. What the
//	               Stream holds of a name through a glob or a wildcard is older then: see session.Topics.Return
//	alone          a suspect whose trial ends has its error, in the control plane's words, and is tried again after a
//	               backoff
//
// A Stream for names has a quarantine of its own. If everything that the control plane ends streams for was answered
// before, then with the second such stream all that was not answered on it is suspect, unless that stream was healthy for
// a while: proxies end those, whatever is requested. A control plane that has never answered, and denies each suspect
// permission, does not admit the relay: all suspects go back to the Stream. But it may deny no more than these, so what is
// requested later is suspect again. Nothing of this costs anything as long as there is no suspect.
//
// Clients choose how many suspects there are, and the control plane pays for the trials. So trials have a budget, which
// serves one good name among 20 bad ones within seconds, and one among 100 within a minute. What is known to be bad is
// tried again much less often, and never before what may be good.
//
// Whoever holds mu does only work that an event or a trial has caused, whatever the number of suspects.

const (
	// acquittal is how long a trial must last before the control plane counts as not minding.
	acquittal = 2 * time.Second
	// trialPace is the shortest time from a trial that was ended to the next, from beginning to beginning.
	trialPace = 100 * time.Millisecond
	// trialsAtOnce and trialEvery are the budget: so many trials at once, and then one in that time.
	trialsAtOnce = 50
	trialEvery   = 500 * time.Millisecond
	// trialParts is into how many parts suspects are divided whose trial was ended. With four, one bad name takes as many
	// trials to be found as with two, and many bad names take fewer.
	trialParts = 4
	// maxKnown bounds the suspects that are remembered after their clients have left, and knownFor how long they are. So
	// a client that requests a bad name, and leaves before that is known, cannot end the Stream again and again.
	maxKnown = 256
	knownFor = 10 * time.Minute
	// shortLived is how long a stream may have been healthy and still count as ended for what was requested on it,
	// although that was answered before.
	shortLived = 10 * time.Second
)

// quarantine has the suspects of a Stream. Stream.mu guards it. The zero value has none.
type quarantine struct {
	suspects  map[cache.Key]*suspect
	types     map[string]int // suspects by type URL
	batches   []*batch       // what is to be tried; they take turns
	fresh     *batch         // of batches, the one of which nothing was tried; nil if there is none
	retries   cache.Expiries[cache.Key]
	trial     *trial                    // nil if there is none
	next      time.Time                 // when the next trial may begin
	nextRetry time.Time                 // when the next trial may begin of what is known to be bad
	spent     time.Time                 // when the trials so far would be over at one every trialEvery
	pace      backoff                   // between trials of what is known to be bad
	outage    backoff                   // between trials that could not take place
	streak    int                       // streams that have ended in a row without a suspect
	known     cache.Expiries[cache.Key] // suspects whose clients have left, and until when they are remembered
	denied    map[cache.Key]struct{}    // went back because the control plane may not admit the relay
	denials   int                       // suspects that were denied
	unjudged  []cache.Key               // that were denied since judgeDenied has decided
	newest    cache.Key                 // the suspect whose reason operators see
	posted    quarantineStatus
	lines     loglines.Shared
	closing   sync.WaitGroup // of trials
}

// quarantineStatus is what operators see of a quarantine.
type quarantineStatus struct {
	suspects int
	reason   string
}

// suspect is a topic that is not on its Stream.
type suspect struct {
	queued  bool   // it waits for a trial in a batch
	company int    // the smallest number of suspects whose trial was ended with this one among them
	alone   bool   // it is known to end streams, and in retries
	denied  bool   // its trial was denied, and the control plane may not admit the relay at all
	reason  string // the control plane's words
	backoff backoff
}

// batch has suspects that came together. A good one among a few does not wait for the many that came before.
type batch struct {
	parts [][]cache.Key // to be tried each
}

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

// has reports whether there are suspects of a type.
func (q *quarantine) has(typeURL string) bool { return q.types[typeURL] > 0 }

// add makes topics suspect, and queues them for a trial.
func (q *quarantine) add(keys []cache.Key, pause backoff) {
	if q.suspects == nil {
		q.suspects, q.types = map[cache.Key]*suspect{}, map[string]int{}
	}
	for _, k := range keys {
		if q.known.End(k); q.suspects[k] == nil {
			q.suspects[k] = &suspect{queued: true, backoff: pause}
			q.types[k.TypeURL]++
		}
	}
	if q.fresh == nil {
		q.fresh = &batch{parts: [][]cache.Key{nil}}
		q.batches = append(q.batches, q.fresh)
	}
	q.fresh.parts[0] = append(q.fresh.parts[0], keys...)
}

// remove forgets a suspect.
func (q *quarantine) remove(k cache.Key) {
	x := q.suspects[k]
	if x == nil {
		return
	}
	q.deny(x, false)
	q.retries.End(k)
	delete(q.suspects, k)
	if q.types[k.TypeURL]--; q.types[k.TypeURL] == 0 {
		delete(q.types, k.TypeURL)
	}
	if len(q.suspects) == 0 {
		q.suspects, q.types, q.batches, q.fresh = nil, nil, nil, nil
	}
}

// deny notes whether a suspect was denied.
func (q *quarantine) deny(x *suspect, denied bool) {
	if x.denied == denied {
		return
	}
	if x.denied = denied; denied {
		q.denials++
	} else {
		q.denials--
	}
}

// ready returns when the next trial may begin.
func (q *quarantine) ready() time.Time { return later(q.next, q.spent.Add(-trialsAtOnce*trialEvery)) }

// waits reports whether there are suspects to be tried that are not known to be bad.
func (q *quarantine) waits() bool { return len(q.batches) > 0 }

// take takes the suspects that are tried next, and their batch.
func (q *quarantine) take(now time.Time) (keys []cache.Key, from *batch) {
	if now.Before(q.ready()) {
		return nil, nil
	}
	for len(q.batches) > 0 {
		b := q.batches[0]
		q.batches[0] = nil
		q.batches = q.batches[1:]
		if b == q.fresh {
			q.fresh = nil
		}
		for len(b.parts) > 0 && len(keys) == 0 {
			keys = q.unqueue(b.parts[0])
			b.parts[0] = nil
			b.parts = b.parts[1:]
		}
		if len(b.parts) > 0 {
			q.batches = append(q.batches, b)
		}
		if len(keys) > 0 {
			return keys, b
		}
	}
	if k, at, ok := q.retries.First(); ok && !now.Before(later(at, q.nextRetry)) {
		return []cache.Key{k}, nil // the one that has waited longest, so that each has its turn
	}
	return nil, nil
}

// unqueue returns those of a part that are still suspects, and wait for a trial no longer.
func (q *quarantine) unqueue(part []cache.Key) (keys []cache.Key) {
	for _, k := range part {
		if x := q.suspects[k]; x != nil && x.queued {
			x.queued = false
			keys = append(keys, k)
		}
	}
	return keys
}

// put queues suspects of a batch for another trial, after its other parts.
func (q *quarantine) put(b *batch, part []cache.Key) {
	for _, k := range part {
		q.suspects[k].queued = true
	}
	if len(b.parts) == 0 {
		q.batches = append(q.batches, b)
	}
	b.parts = append(b.parts, part)
}

// remember notes that a topic may end streams, for clients that request it later: what has ended a stream alone, and half
// as long what has ended one in company, if that is not too much to be remembered. So neither many names nor those that
// were never tried displace what is known to be bad.
func (q *quarantine) remember(k cache.Key, company int, now time.Time) {
	if company == 0 || company > maxKnown {
		return
	}
	duration := knownFor
	if company > 1 {
		duration /= 2
	}
	q.known.Set(k, now.Add(duration))
	for q.known.Len() > maxKnown {
		first, _, _ := q.known.First()
		q.known.End(first)
	}
}

// recall reports whether a topic is remembered, and forgets it.
func (q *quarantine) recall(k cache.Key, now time.Time) bool {
	until, known := q.known.At(k)
	q.known.End(k)
	return known && !now.After(until)
}

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

// suspect moves what may be why the control plane has ended a stream to the quarantine. It returns whether the stream can
// be opened without it. The caller holds mu, and the feeds still have their sessions.
func (s *Stream) suspect(c *call) (moved []cache.Key) {
	q := &s.quarantine
	if s.opts.noQuarantine || c.err == nil || s.ctx.Err() != nil || !endsForRequest(c.err) {
		return nil
	}
	if s.admitted.Load() {
		q.denied = nil
	}
	collect := func(ever bool) (keys []cache.Key) {
		for _, f := range s.sorted() {
			if f.session == nil {
				continue
			}
			for _, name := range f.topics.Unanswered(ever) {
				k := cache.Key{Scope: s.scope, TypeURL: f.typeURL(), Name: name}
				if _, denied := q.denied[k]; !denied || admits(c) {
					keys = append(keys, k)
				}
			}
		}
		return keys
	}
	keys := collect(true)
	if len(keys) == 0 {
		if !admits(c) {
			return nil // what was answered is not why, and what was denied was tried
		}
		if q.streak++; q.streak < 2 {
			return nil
		}
		keys = collect(false)
	}
	q.streak = 0
	if len(keys) == 0 || len(keys) == 1 && s.agenda.sum.wanted == 1 && len(q.suspects) == 0 {
		return nil // it is alone already
	}
	if log, ok := q.lines.Next(s.own); ok {
		log.Warn("control plane has ended a stream, perhaps because of what it has not answered on it: that is requested on another stream",
			"topics", len(keys), "reason", Reason(c.err))
	}
	return keys
}

// isolate stops topics on the stream and queues them for a trial. The caller holds mu, and the topics have lost their
// stream.
func (s *Stream) isolate(keys []cache.Key) {
	if len(keys) == 0 {
		return
	}
	q := &s.quarantine
	q.add(keys, backoff{base: s.opts.BackoffBase, limit: s.opts.BackoffMax})
	for _, k := range keys {
		if f := s.feeds[k.TypeURL]; f != nil {
			f.topics.Stop(k.Name)
			if s.concern(f); f.wanted() == 0 && !s.live {
				s.remove(f)
			}
		}
	}
	s.postQuarantine()
}

// takeSuspect processes a note about a suspect. It returns false if the note is about something else. The caller holds
// mu.
func (s *Stream) takeSuspect(n note) bool {
	q := &s.quarantine
	if n.stop {
		delete(q.denied, n.key)
	}
	x := q.suspects[n.key]
	if x == nil {
		starts := !n.stop && !n.again && !n.resume && !n.adopt
		if !starts || q.known.Len() == 0 || !q.recall(n.key, time.Now()) {
			return false
		}
		s.isolate([]cache.Key{n.key})
		q.suspects[n.key].company = 2 // so that it is remembered again if it leaves before its trial
		return true
	}
	if n.stop {
		q.remember(n.key, x.company, time.Now())
		q.remove(n.key)
	}
	t := q.trial
	if t == nil {
		return true
	}
	if _, tried := t.keys[n.key]; !tried {
		return true
	}
	if n.stop {
		delete(t.keys, n.key)
		t.left = append(t.left, n.key)
	}
	t.stream.inbox.Put(n)
	return true
}

// attendQuarantine goes on with the trials. It returns the topics that go back to the stream. The caller holds mu.
func (s *Stream) attendQuarantine(now time.Time) (back []note) {
	q := &s.quarantine
	if len(q.suspects) == 0 && q.trial == nil {
		s.postQuarantine()
		return nil
	}
	if t := q.trial; t != nil && t.mu.TryLock() { // otherwise it delivers something, and wakes the Stream then
		back = s.attendTrial(now, t)
		t.mu.Unlock()
	}
	for _, n := range back {
		q.remove(n.key)
	}
	if q.trial == nil {
		if keys, from := q.take(now); len(keys) > 0 {
			s.beginTrial(now, keys, from)
		}
	}
	if q.trial == nil && !q.waits() {
		back = append(back, s.judgeDenied(now)...)
	}
	s.postQuarantine()
	return back
}

// attendTrial is attendQuarantine for the present trial. The caller also holds the trial's mu.
func (s *Stream) attendTrial(now time.Time, t *trial) (back []note) {
	q := &s.quarantine
	for _, k := range t.answered {
		if _, waits := t.keys[k]; waits {
			delete(t.keys, k)
			delete(t.feeds, k)
			back = append(back, note{key: k, tried: true})
			s.admitted.Store(true)
			q.pace.reset()
		}
	}
	t.answered = nil
	switch {
	case t.end != nil:
		s.endTrial()
		s.judge(now, t, t.end)
	case len(t.keys) == 0:
		s.endTrial()
	case now.Sub(t.began) >= acquittal && t.stream.Status().Connected:
		s.endTrial()
		t.feeds = nil
		for k := range t.keys {
			back = append(back, note{key: k})
		}
	}
	return back
}

// judge draws the conclusions from a trial that has ended. The caller holds mu.
func (s *Stream) judge(now time.Time, t *trial, end error) {
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
	if !endsForRequest(end) { // it could not be tried
		q.next = now.Add(q.outage.delay())
		if len(keys) > 0 && !retried {
			q.put(t.batch, keys)
		}
		return
	}
	q.outage.reset()
	q.next = t.began.Add(trialPace)
	company := len(keys) + len(t.left)
	for _, k := range keys {
		if x := q.suspects[k]; x.company == 0 || x.company > company {
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
		q.remove(k)
		q.denied[k] = struct{}{}
		back = append(back, note{key: k})
	}
	return back
}

// convict notes that a topic, alone, ends streams. Its clients hear why. The caller holds mu.
func (s *Stream) convict(now time.Time, k cache.Key) {
	x := s.quarantine.suspects[k]
	first := !x.alone
	x.alone = true
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

// beginTrial tries suspects. The caller holds mu.
func (s *Stream) beginTrial(now time.Time, keys []cache.Key, b *batch) {
	q := &s.quarantine
	q.spent = later(q.spent, now).Add(trialEvery)
	t := &trial{batch: b, keys: map[cache.Key]struct{}{}, feeds: map[cache.Key]struct{}{}, began: now}
	for _, k := range keys {
		t.keys[k], t.feeds[k] = struct{}{}, struct{}{}
	}
	o := s.opts
	o.watch = func(delivery.Event) {} // whether the server can be reached, the other streams tell
	o.typeAnswered, o.typesBlamed, o.noQuarantine = nil, nil, true
	o.peers, o.Presence = new(peers), NewPresence("", slog.New(slog.DiscardHandler))
	if p := s.opts.Presence; p != nil {
		o.Presence.server = p.server
		o.Presence.forms.inherit(&p.forms)
	}
	o.trialEnded = func(err error) {
		t.mu.Lock()
		t.end = err
		t.mu.Unlock()
		s.inbox.Wake()
	}
	t.stream = newStream([]*form{s.form}, s.scope, s.conn, s.node, o, trialReceiver{t, s}, s.log.With("stream", "quarantine"))
	for _, k := range keys {
		t.stream.Start(k)
	}
	q.trial = t
}

// endTrial closes the trial. The caller holds mu.
func (s *Stream) endTrial() {
	q := &s.quarantine
	t := q.trial
	q.trial = nil
	t.stream.Close() // at once: the Stream may bring something newer
	q.closing.Go(func() { <-t.stream.Done() })
}

// dueQuarantine returns when attendQuarantine must be called. The caller holds mu.
func (s *Stream) dueQuarantine() (at time.Time, ok bool) {
	q := &s.quarantine
	switch {
	case q.trial != nil:
		return later(q.trial.began.Add(acquittal), time.Now().Add(100*time.Millisecond)), true
	case q.waits():
		return q.ready(), true
	}
	at, ok = q.retries.Next()
	return later(at, later(q.nextRetry, q.ready())), ok
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// postQuarantine posts the number of suspects, and the newest reason. The caller holds mu.
func (s *Stream) postQuarantine() {
	q := &s.quarantine
	x := q.suspects[q.newest]
	if x == nil || x.reason == "" {
		q.newest, _, _ = q.retries.First()
		x = q.suspects[q.newest]
	}
	now := quarantineStatus{suspects: len(q.suspects)}
	if x != nil {
		now.reason = x.reason
	}
	if now != q.posted {
		q.posted = now
		s.board.post(func(st *Status) { st.Quarantined, st.QuarantineReason = now.suspects, now.reason })
	}
}

func compareKeys(a, b cache.Key) int {
	if a.TypeURL != b.TypeURL {
		return strings.Compare(a.TypeURL, b.TypeURL)
	}
	return strings.Compare(a.Name, b.Name)
}
