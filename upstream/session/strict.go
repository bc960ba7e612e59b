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
// that was answered may be gone. Those that stay without an answer are parked: they are left out.
// When the control plane sends something, of any type, they are tried again. If a control plane that has
// answered on an earlier stream is silent, it may have nothing new: it is requested once without a version first.
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
	// mostTrials bounds the trials of which none is answered.
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
	others  []*subscription   // the others are requested alone, without these
	news    bool              // there was a response of any type in this series
	current []*subscription   // those that are being tried now
	rest    [][]*subscription // those to be tried next, in groups
	vain    int               // trials since the last answer
	heard   bool              // there was an answer in this series
	forced  bool              // the request was sent without a version
	ended   time.Time         // when the last series ended, or endpoints were left out
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

// awaitAnswer begins to wait for the answer of a request, unless names are being tried already.
func (s *sotwNames) awaitAnswer(now time.Time) {
	if t := &s.trials; t.at.IsZero() && !t.series && s.names.strict() && len(s.those(s.isUnanswered)) > 0 {
		s.until(now.Add(silenceWait))
	}
}

// until schedules the end of the present wait.
func (s *sotwNames) until(at time.Time) { s.trials.at, s.names.trialAt = at, at }

// trySilence acts on the silence of a strict control plane, if it is time.
func (s *sotwNames) trySilence(now time.Time) {
	n, t := s.names, &s.trials
	if t.at.IsZero() || now.Before(t.at) {
		return
	}
	s.until(time.Time{})
	switch {
	case !n.strict():
		s.endTrials(now)
	case t.series:
		s.park(s.stillUnanswered(t.current))
		s.nextTrial(now)
	default:
		untried := func(sub *subscription) bool { return sub.parked && !sub.leftOut }
		if s.beginTrials(now); t.at.IsZero() && n.parked > 0 && len(s.those(untried)) > 0 {
			s.retry(now.Add(silenceWait))
		}
	}
}

// stillUnanswered returns those of some names that still have no answer.
func (s *sotwNames) stillUnanswered(of []*subscription) []*subscription {
	return slices.DeleteFunc(slices.Clone(of), func(sub *subscription) bool { return !s.isUnanswered(sub) })
}

// beginTrials begins a series after silenceWait: first, all others are requested without the names that were not
// answered.
func (s *sotwNames) beginTrials(now time.Time) {
	n, t := s.names, &s.trials
	group := s.those(s.isUnanswered)
	others := len(s.those(func(sub *subscription) bool { return !sub.parked && !s.isUnanswered(sub) })) > 0
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

// startSeries begins a series in which an answer is what comes after so many responses.
func (s *sotwNames) startSeries(base uint64) {
	t := &s.trials
	t.series, t.base, t.heard, t.vain = true, base, false, 0
	t.current, t.rest, t.others = nil, nil, nil
}

// park leaves names out of the requests. If there are several, halves of them are tried next.
func (s *sotwNames) park(group []*subscription) {
	for _, sub := range group {
		sub.parked, sub.first = true, false
	}
	if half := len(group) / 2; half > 0 {
		s.trials.rest = append([][]*subscription{group[:half], group[half:]}, s.trials.rest...)
	}
	s.names.parked = len(s.those(isParked))
	s.dirty = true
}

// nextTrial tries the next names, if there are any.
func (s *sotwNames) nextTrial(now time.Time) {
	t := &s.trials
	for len(t.rest) > 0 && t.vain < mostTrials {
		t.current = s.stillUnanswered(t.rest[0])
		if t.rest = t.rest[1:]; len(t.current) == 0 {
			continue
		}
		s.restore(now, t.current)
		t.vain, t.others = t.vain+1, nil
		s.dirty = true
		s.until(now.Add(trialWait))
		return
	}
	s.endTrials(now)
}

// endTrials ends a series. If there was no answer in it, the names that were never answered may not be the reason: a name
// that had an answer may be gone. So all names are tried once. If there is no answer then either, none is left out.
func (s *sotwNames) endTrials(now time.Time) {
	n, t := s.names, &s.trials
	if n.strict() && t.series && !t.heard && !t.all {
		all := s.those(func(sub *subscription) bool { return !isLeftAsUnreferred(sub) })
		if others := len(all) - len(s.those(s.isUnanswered)); others > 0 && len(all) <= mostInAll {
			s.startSeries(n.responses)
			t.all = true
			s.park(all)
			s.nextTrial(now)
			return
		}
	}
	if !t.heard || !n.strict() {
		// A name that was left out for a moment may have gone just then. A control plane that is not strict need not answer
		// the request that has it again, but answers the first one of a new stream.
		if n.strict() && t.all && n.responses > n.before {
			n.relist, n.shown = true, ""
		}
		s.unpark(now)
	}
	again := t.news && t.heard
	*t = trials{forced: t.forced, ended: now}
	s.until(time.Time{})
	s.dirty = true
	parked := s.those(isParked)
	n.leaveOut(parked)
	switch n.parked = len(parked); {
	case again && n.parked > 0:
		s.retry(now.Add(silenceWait))
	case len(s.those(func(sub *subscription) bool { return !sub.parked && s.isUnanswered(sub) })) > 0 && n.parked > 0:
		s.until(now.Add(silenceWait)) // names that were added meanwhile
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

// retry schedules a series in which the parked names are tried.
func (s *sotwNames) retry(at time.Time) {
	s.startSeries(s.names.responses)
	s.trials.heard, s.trials.all = true, true
	s.trials.rest = [][]*subscription{s.those(isParked)}
	s.until(at)
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
		t.heard, t.vain = true, 0
	}
	waits := t.current
	switch {
	case !t.series:
		waits = s.those(s.isUnanswered)
	case t.others != nil:
		// The others were answered: what has changed may also have brought those that were not.
		t.rest, t.others = [][]*subscription{t.others}, nil
	case t.current == nil:
		return // a series that has not begun yet
	}
	if !slices.ContainsFunc(waits, s.isUnanswered) {
		s.until(time.Time{})
		if t.series {
			s.nextTrial(now)
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
	if s.names.parked == 0 {
		return false
	}
	if t.series || !t.at.IsZero() {
		t.news = true
		return false
	}
	s.retry(later(now, t.ended.Add(silenceWait)))
	return true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
