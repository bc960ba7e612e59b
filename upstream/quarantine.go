package upstream

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// A control plane may end a stream because of one name, wildcard or glob on it. All clients of the scope share the
// stream. So what was requested on a stream that the control plane has ended, and was never answered, is suspect:
//
//	the Stream     requests everything but the suspects, and is open again after one reconnect
//	a trial        another Stream, one of a few, that requests some suspects. If the control plane ends it, trials of
//	               the quarters follow, after those of the other parts. What has become suspect at another time takes
//	               turns with it
//	answered       a suspect goes back to the Stream, also if the control plane does not end the trial soon. What the
//	               Stream holds of a name through a glob or a wildcard is older then: see session.Topics.Return
//	alone          a suspect whose trial ends has its error, in the control plane's words, and is tried again after a
//	               backoff
//	afterwards     for a while, what is new is requested in a trial first. So the next bad name ends no stream but that
//
// A Stream for names has a quarantine of its own. If everything that the control plane ends streams for was answered
// before, then with the second such stream all that was not answered on it is suspect, unless that stream was healthy for
// a while: proxies end those, whatever is requested. A control plane that has never answered, and denies each suspect
// permission, does not admit the relay: all suspects go back to the Stream. But it may deny no more than these, so what is
// requested later is suspect again. Nothing of this costs anything as long as there is no suspect.
//
// Clients choose how many suspects there are, and the control plane pays for the trials. So trials have a budget, which
// serves a good name among 100 bad ones within seconds. What is known to be bad is tried again much less often, and never
// before what may be good.
//
// Whoever holds mu does only work that an event or a trial has caused, whatever the number of suspects.
//
// The files: this one has the suspects, quarantine_queue.go what is tried next, quarantine_trial.go the trials, and
// quarantine_verdict.go what follows from them.

const (
	// acquittal is how long a trial must last before the control plane counts as not minding.
	acquittal = 2 * time.Second
	// maxTrials bounds the trials at the same time, each a stream of the connection that partitions share.
	maxTrials = 8
	// trialPace is the shortest time from the beginning of a trial to that of the next.
	trialPace = 15 * time.Millisecond
	// retryPace is the shortest time between trials of what is known to be bad, and after those that could not take place.
	retryPace = 100 * time.Millisecond
	// trialsAtOnce and trialEvery are the budget: so many trials at once, and then one in that time. A good name and 100 bad ones
	// take about 170.
	trialsAtOnce = 200
	trialEvery   = 500 * time.Millisecond
	// trialParts is into how many parts suspects are divided whose trial was ended. With four, one bad name takes as many
	// trials to be found as with two, and many bad names take fewer.
	trialParts = 4
	// maxKnown bounds the suspects that are remembered after their clients have left, and knownFor how long they are. So
	// a client that requests a bad name, and leaves before that is known, cannot end the Stream again and again.
	maxKnown = 256
	knownFor = 10 * time.Minute
	// touchyFor is how long what is new is tried first, after the control plane has ended a trial of one suspect.
	touchyFor = 10 * time.Minute
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
	trials    []*trial                  // at most maxTrials
	next      time.Time                 // when the next trial may begin
	nextRetry time.Time                 // when the next trial may begin of what is known to be bad
	spent     time.Time                 // when the trials so far would be over at one every trialEvery
	pace      backoff                   // between trials of what is known to be bad
	outage    backoff                   // between trials that could not take place
	failed    time.Time                 // when a trial could last not take place
	excused   bool                      // a trial has ended, perhaps because of its Node, and none was answered since
	untried   int                       // suspects that have ended nothing: see probe
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
	trial   *trial // that requests it, nil if none does
	untried bool   // it has ended nothing: see probe
	resumed bool   // a client holds it from an earlier stream
	company int    // the smallest number of suspects whose trial was ended with this one among them
	alone   bool   // it is known to end streams, and in retries
	denied  bool   // its trial was denied, and the control plane may not admit the relay at all
	reason  string // the control plane's words
	backoff backoff
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
		q.next = later(q.next, time.Now().Add(trialPace)) // more may come at once
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
	q.blame(x)
	q.retries.End(k)
	delete(q.suspects, k)
	if q.types[k.TypeURL]--; q.types[k.TypeURL] == 0 {
		delete(q.types, k.TypeURL)
	}
	if len(q.suspects) == 0 {
		q.suspects, q.types, q.batches, q.fresh = nil, nil, nil, nil
	}
}

// returning returns the notes with which a suspect that has no answer goes back to the Stream.
func (q *quarantine) returning(k cache.Key) []note {
	notes := []note{{key: k, back: true}}
	if q.suspects[k].resumed {
		notes = append(notes, note{key: k, resume: true})
	}
	return notes
}

// blame notes that a suspect may have ended a stream.
func (q *quarantine) blame(x *suspect) {
	if x.untried {
		x.untried = false
		q.untried--
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
		if !n.starts() || n.back || q.known.Len() == 0 || !q.recall(n.key, time.Now()) {
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
	x.resumed = x.resumed || n.resume
	t := x.trial
	if t == nil {
		return true
	}
	if n.stop {
		delete(t.keys, n.key)
		t.left = append(t.left, n.key)
	}
	t.stream.inbox.Put(n)
	return true
}

// probe lets a trial request a topic that starts, before the Stream does, if the control plane has lately ended streams
// for topics. It returns false if that would protect nobody, or keep from a client what is known: feeds are those of the
// topic's type, or nil. The caller holds mu.
func (s *Stream) probe(n note, feeds ...*feed) bool {
	if !n.starts() || n.back || s.down != nil || s.opts.noQuarantine || time.Now().UnixNano() >= s.touchyUntil.Load() || !s.wanted() {
		return false
	}
	answered := false // otherwise the control plane may not have the type
	for _, f := range feeds {
		switch {
		case f == nil:
		case f.topics.Knows(n.key.Name):
			return false
		default:
			answered = answered || f.topics.Responses() > 0
		}
	}
	if !answered {
		return false
	}
	s.isolate([]cache.Key{n.key})
	s.quarantine.suspects[n.key].untried = true
	s.quarantine.untried++
	return true
}

// attendQuarantine goes on with the trials. It returns the topics that go back to the stream. The caller holds mu.
func (s *Stream) attendQuarantine(now time.Time) (back []note) {
	q := &s.quarantine
	if len(q.suspects) == 0 && len(q.trials) == 0 {
		s.postQuarantine()
		return nil
	}
	for _, t := range slices.Clone(q.trials) {
		if t.mu.TryLock() { // otherwise it delivers something, and wakes the Stream then
			back = append(back, s.attendTrial(now, t)...)
			t.mu.Unlock()
		}
	}
	for _, n := range back {
		q.remove(n.key)
	}
	for len(q.trials) < maxTrials {
		keys, from := q.take(now)
		if len(keys) == 0 {
			break
		}
		s.beginTrial(now, keys, from)
	}
	if len(q.trials) == 0 && !q.waits() {
		back = append(back, s.judgeDenied(now)...)
	}
	s.postQuarantine()
	return back
}

// dueQuarantine returns when attendQuarantine must be called. The caller holds mu.
func (s *Stream) dueQuarantine() (at time.Time, ok bool) {
	q := &s.quarantine
	switch {
	case q.waits() && len(q.trials) < maxTrials:
		at, ok = q.ready(), true
	case len(q.trials) == 0:
		at, ok = q.retries.Next()
		at = later(at, later(q.nextRetry, q.ready()))
	}
	if len(q.trials) > 0 { // the first has begun first
		if due := later(q.trials[0].began.Add(acquittal), time.Now().Add(100*time.Millisecond)); !ok || due.Before(at) {
			at, ok = due, true
		}
	}
	return at, ok
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
	now := quarantineStatus{suspects: len(q.suspects) - q.untried}
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
