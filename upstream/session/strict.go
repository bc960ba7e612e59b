package session

import (
	"slices"
	"time"
)

// Strict control planes: in SotW they answer a request only if they have every name of it (java-control-plane,
// and go-control-plane's snapshot cache on aggregated streams). The relay requests the names of several clients
// together. So one wrong name would keep all other names of its type from being answered, and from being updated.
//
// If no answer comes for silenceWait, the relay requests the type once without the names that were never
// answered on the stream, and then tries these in halves. If nothing of that is answered, it tries all names in halves: one
// that was answered may be gone. Those that stay without an answer are parked: they are left out. After each trial
// without an answer, the other names are requested alone for as long: what is new of them waits for one trial, and not for
// the series. If a control plane that has answered on an earlier stream is silent, it may have nothing new: it is requested
// once without a version first.
//
// When the control plane sends something, of any type, the parked names are tried again. If all of them were parked
// before, and none of them comes, the wait before the next time doubles. A name that is added during a series is tried
// next, and one that is added later has a series of its own: neither has to wait until the parked names were tried.
//
// The endpoints of a Cluster that is gone are left out at once: see endpoints.go.
//
// A control plane that answers a request without having all of its names is not strict, and none of this is
// needed. The relay remembers that (Habits.lenient).

// Answers says which requests a SotW control plane answers.
type Answers uint8

const (
	// AnswersAll says: those for names that it does not have, too.
	AnswersAll Answers = iota
	// AnswersAuto says that it is not known.
	AnswersAuto
	// AnswersKnown says: only those of which it has every name.
	AnswersKnown
)

const (
	// silenceWait is how long a request may have no answer before names are left out. trialWait is the same for a trial
	// of some of them.
	silenceWait = 2 * time.Second
	trialWait   = 500 * time.Millisecond
	// newWait is silenceWait while names are parked: clients that add one wrong name after the other must not have all
	// others wait for most of the time.
	newWait = time.Second
	// longestRest bounds the wait before parked names are tried again. It begins with silenceWait.
	longestRest = time.Minute
	// mostTrials bounds the trials of a series in which nothing is answered.
	mostTrials = 24
	// mostInAll bounds the names of which all are tried, also those that were answered before.
	mostInAll = 256
)

// trials is the search for the names that keep a strict control plane from answering.
type trials struct {
	at      time.Time         // when the present wait ends, zero if there is none
	series  bool              // names are being tried
	base    uint64            // the responses before the series
	all     bool              // also names that were answered before
	known   []*subscription   // these names, if all are tried because there was no answer
	resting bool              // the others are requested alone, after a trial without an answer
	others  []*subscription   // the others are requested alone, without these
	news    bool              // there was a response of any type in this series
	current []*subscription   // those that are being tried now
	rest    [][]*subscription // those to be tried next, in groups
	added   []*subscription   // those that were added in this series, to be tried before
	done    int               // trials in this series
	heard   bool              // there was an answer in this series
	came    bool              // names that were tried in this series were answered
	forced  bool              // the request was sent without a version
	ended   time.Time         // when the last series ended, or endpoints were left out
	retryAt time.Time         // when the parked names are tried again, zero if they are not
	wait    time.Duration     // from ended to that, at least
}

// Strict reports whether the control plane may answer only requests of which it has every name. h may be nil.
func (h *Habits) Strict(a Answers) bool {
	switch {
	case a != AnswersAuto:
		return a == AnswersKnown
	case h == nil:
		return true
	}
	defer h.lock()()
	return !h.lenient
}

func (h *Habits) answersAll() {
	defer h.lock()()
	h.lenient = true
}

// strict is Habits.Strict of the control plane.
func (n *Names) strict() bool {
	return n.sotw && n.habits.Strict(n.answers)
}

// isUnanswered reports that a name is requested, and nothing came for it since the wait began: on the stream, or in the
// series.
func (s *sotwNames) isUnanswered(sub *subscription) bool {
	n, base := s.names, s.names.before
	if s.trials.series {
		base = s.trials.base
	}
	return n.subs[sub.name] == sub && sub.wanted && sub.sent && sub.seen <= base
}

// those returns the requested names that fit.
func (s *sotwNames) those(fits func(*subscription) bool) (subs []*subscription) {
	for _, name := range s.names.sorted() {
		if sub := s.names.subs[name]; sub.sent && fits(sub) {
			subs = append(subs, sub)
		}
	}
	return subs
}

func isParked(sub *subscription) bool { return sub.parked }

// isAwaited reports that a name is in the requests, and nothing came for it since the wait began.
func (s *sotwNames) isAwaited(sub *subscription) bool { return !sub.parked && s.isUnanswered(sub) }

// isOther reports that a name is in the requests, and was answered.
func (s *sotwNames) isOther(sub *subscription) bool { return !sub.parked && !s.isUnanswered(sub) }

// awaitAnswer begins to wait for the answer of names that are requested now. In a series they are tried next.
func (s *sotwNames) awaitAnswer(now time.Time, added []*subscription) {
	t := &s.trials
	switch {
	case len(added) == 0 || !s.names.strict():
	case t.series:
		for _, sub := range s.stillUnanswered(added) {
			sub.parked = true
			s.names.parked++
			t.added = append(t.added, sub)
		}
	case !t.at.IsZero() || !slices.ContainsFunc(added, s.isUnanswered):
	case s.names.parked > 0:
		s.until(now.Add(newWait))
	default:
		s.until(now.Add(silenceWait))
	}
}

// until schedules the end of the present wait, and no retry before that.
func (s *sotwNames) until(at time.Time) {
	if s.trials.at, s.names.trialAt = at, at; at.IsZero() {
		s.names.trialAt = s.trials.retryAt
	}
}

// trySilence acts on the silence of a strict control plane, if it is time.
func (s *sotwNames) trySilence(now time.Time) {
	t := &s.trials
	if at := s.names.trialAt; at.IsZero() || now.Before(at) {
		return
	}
	waited := !t.at.IsZero()
	s.until(time.Time{})
	switch {
	case !s.names.strict():
		s.endTrials(now)
	case t.series:
		s.endTrial(now)
	case waited:
		s.beginTrials(now)
	default:
		s.retry(now)
	}
}

// endTrial ends a wait in a series. After a trial without an answer, only the others are requested before the next one. If
// there was no answer in the series, these are all that were answered before it.
func (s *sotwNames) endTrial(now time.Time) {
	t := &s.trials
	vain := s.stillUnanswered(t.current)
	t.current = nil
	s.park(vain)
	if t.resting {
		s.leave(s.stillUnanswered(t.known))
	} else if len(vain) > 0 && len(t.rest)+len(t.added) > 0 {
		if !t.heard {
			s.restore(now, s.stillUnanswered(t.known))
		}
		if len(s.requestOf()) > 0 {
			t.resting = true
			s.until(now.Add(trialWait))
			return
		}
	}
	t.resting = false
	s.nextTrial(now)
}

// stillUnanswered returns those of some names that still have no answer.
func (s *sotwNames) stillUnanswered(of []*subscription) []*subscription {
	return slices.DeleteFunc(slices.Clone(of), func(sub *subscription) bool { return !s.isUnanswered(sub) })
}

// beginTrials begins a series after a request without an answer: first, all others are requested without the names that
// were not answered.
func (s *sotwNames) beginTrials(now time.Time) {
	n, t := s.names, &s.trials
	group := s.those(s.isAwaited)
	others := len(s.those(s.isOther)) > 0
	switch {
	case len(group) == 0, len(group) == 1 && !others:
		return // nobody else waits
	case s.version != "" && n.responses == n.before && !t.forced:
		// It may have nothing new.
		t.forced, s.version, s.repeat = true, "", true
		s.until(now.Add(silenceWait))
		return
	}
	s.startSeries(n.before)
	s.park(group)
	if others {
		t.others = group
		s.until(now.Add(trialWait))
		return
	}
	s.nextTrial(now)
}

// startSeries begins a series in which an answer is what comes after so many responses. A retry that was scheduled comes
// after it.
func (s *sotwNames) startSeries(base uint64) {
	t := &s.trials
	t.news = t.news || !t.retryAt.IsZero()
	t.series, t.base, t.heard, t.done, t.retryAt = true, base, false, 0, time.Time{}
	t.current, t.rest, t.others, t.added, t.known, t.resting = nil, nil, nil, nil, nil, false
}

// park leaves names out of the requests. If there are several, halves of them are tried next.
func (s *sotwNames) park(group []*subscription) {
	s.leave(group)
	if half := len(group) / 2; half > 0 {
		s.trials.rest = append([][]*subscription{group[:half], group[half:]}, s.trials.rest...)
	}
}

// leave leaves names out of the requests.
func (s *sotwNames) leave(group []*subscription) {
	for _, sub := range group {
		sub.parked, sub.first = true, false
	}
	s.names.parked = len(s.those(isParked))
	s.dirty = true
}

// nextTrial tries the next names, if there are any.
func (s *sotwNames) nextTrial(now time.Time) {
	t := &s.trials
	if len(t.added) > 0 {
		t.rest, t.added = append([][]*subscription{t.added}, t.rest...), nil
	}
	for len(t.rest) > 0 && (t.heard || t.done < mostTrials) {
		t.current = s.stillUnanswered(t.rest[0])
		if t.rest = t.rest[1:]; len(t.current) == 0 {
			continue
		}
		s.restore(now, t.current)
		t.done, t.others = t.done+1, nil
		s.dirty = true
		s.until(now.Add(trialWait))
		return
	}
	s.endTrials(now)
}

// endTrials ends a series. If there was no answer in it, the names that were never answered may not be the reason: a name
// that had an answer may be gone. So all names are tried once. If there is no answer then either, none is left out, and a
// new stream tells. If there are too many to try all, a new stream tells once, and the next time those that were never
// answered stay left out.
func (s *sotwNames) endTrials(now time.Time) {
	n, t := s.names, &s.trials
	tooMany := false // to try all
	if n.strict() && t.series && !t.heard && !t.all {
		all := s.those(func(sub *subscription) bool { return !isLeftAsUnreferred(sub) })
		known := slices.DeleteFunc(slices.Clone(all), s.isUnanswered)
		if tooMany = len(known) > 0 && len(all) > mostInAll; len(known) > 0 && !tooMany {
			s.startSeries(n.responses)
			t.all, t.known = true, known
			s.park(all)
			s.nextTrial(now)
			return
		}
	}
	switch {
	case !n.strict():
		s.unpark(now)
	case t.heard:
	case tooMany && (n.answers == AnswersKnown || n.relisted):
		// The others may have nothing new. They would not come with the names that were never answered.
	default:
		// A name that was left out for a moment may have gone just then. A control plane that is not strict need not answer
		// the request that has it again, but answers the first one of a new stream.
		if (t.all || tooMany) && n.responses > n.before {
			n.relist, n.shown = true, ""
		}
		s.unpark(now)
	}
	parked := s.those(isParked)
	again, heard, rest := t.news && t.heard && len(parked) > 0, t.heard, silenceWait
	if !t.came && !slices.ContainsFunc(parked, func(sub *subscription) bool { return !sub.leftOut }) {
		rest = min(max(2*t.wait, silenceWait), longestRest)
	}
	*t = trials{forced: t.forced, ended: now, wait: rest}
	if again {
		t.retryAt = now.Add(rest)
	}
	s.until(time.Time{})
	s.dirty = true
	n.leaveOut(parked)
	if n.parked = len(parked); heard {
		s.awaitAnswer(now, s.those(s.isAwaited))
	}
}

// restore requests parked names again. What was answered before waits as if it were requested anew: a full response that
// does not have it may answer the request without it.
func (s *sotwNames) restore(now time.Time, subs []*subscription) {
	n := s.names
	var answered []*subscription
	for _, sub := range subs {
		sub.parked, sub.left, sub.asked = false, true, n.responses
		if sub.answered {
			answered = append(answered, sub)
		}
	}
	n.wait(answered, now)
}

// unpark requests all parked names again, but from a strict control plane not those to which no Cluster refers.
func (s *sotwNames) unpark(now time.Time) {
	strict := s.names.strict()
	s.restore(now, s.those(func(sub *subscription) bool { return sub.parked && !(sub.unreferred && strict) }))
	s.names.parked = len(s.those(isParked))
	s.names.leaveOut(nil)
}

// retry begins a series in which the parked names are tried.
func (s *sotwNames) retry(now time.Time) {
	t := &s.trials
	t.retryAt = time.Time{}
	s.startSeries(s.names.responses)
	t.heard, t.all = true, true
	t.rest = [][]*subscription{s.those(isParked)}
	s.nextTrial(now)
}

// retryLater schedules a retry.
func (s *sotwNames) retryLater(at time.Time) {
	s.trials.retryAt = at
	s.until(s.trials.at)
}

// answeredTrial notes a response.
func (s *sotwNames) answeredTrial(now time.Time, v *accepted) {
	n, t := s.names, &s.trials
	if !n.strict() {
		return
	}
	if n.answers == AnswersAuto && !v.hidden && !v.onlyBeats() && s.lacks() {
		n.habits.answersAll()
		s.endTrials(now)
		return
	}
	switch {
	case t.at.IsZero():
		return
	case t.series:
		if !t.heard && len(t.known) > 0 {
			// There may have been nothing new of those that were tried before that.
			never := func(sub *subscription) bool { return sub.parked && !sub.unreferred && sub.seen <= n.before }
			t.rest = [][]*subscription{t.known, s.those(never)}
		}
		t.heard = true
		s.takeBack(t.known)
	}
	waits := t.current
	switch {
	case !t.series:
		waits = s.those(s.isAwaited)
	case t.others != nil:
		// The others were answered: what has changed may also have brought those that were not.
		t.rest, t.others = [][]*subscription{t.others}, nil
	case t.current == nil:
		return // the others are requested alone
	}
	if !slices.ContainsFunc(waits, s.isUnanswered) {
		s.until(time.Time{})
		if t.series {
			t.came = t.came || len(t.current) > 0
			s.nextTrial(now)
		}
	}
}

// takeBack requests those of some names again that came although they were parked: the response took longer than the trial.
func (s *sotwNames) takeBack(subs []*subscription) {
	for _, sub := range subs {
		if sub.parked && !s.isUnanswered(sub) {
			sub.parked, s.dirty = false, true
			s.names.parked--
		}
	}
}

// lacks reports that the last response lacks a name that the control plane knew to be requested.
func (s *sotwNames) lacks() bool {
	n := s.names
	return slices.ContainsFunc(s.wanted, func(name string) bool {
		sub := n.subs[name]
		return sub != nil && sub.seen != n.responses && n.knew(sub, n.responses)
	})
}

// knew reports that a control plane knew a name to be requested when it sent a response. A strict control plane answers a
// request once, with whatever was known when it read it, and ignores requests that do not have the nonce of its last
// response. So the first response after the name was requested may be for an earlier request, and the next one is not.
func (n *Names) knew(sub *subscription, response uint64) bool {
	return !sub.repeated && (sub.first || sub.asked > n.before && response > sub.asked+1)
}

// Heard notes that the control plane has sent a response, of any type. It reports whether that changes what is due.
func (s *sotwNames) Heard(now time.Time) bool {
	t := &s.trials
	switch {
	case s.names.parked == 0 || !t.retryAt.IsZero():
		return false
	case t.series:
		t.news = true
		return false
	}
	s.retryLater(later(now, t.ended.Add(t.wait)))
	return t.at.IsZero()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
