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
// answered on the stream, and then tries these in halves. Those that stay without an answer are parked: they are left out.
// When the control plane sends something, of any type, they are tried again. If a control plane that has
// answered on an earlier stream is silent, it may have nothing new: it is requested once without a version first.
//
// A control plane that answers a request without having all of its names is not strict, and none of this is
// needed. The relay remembers that (Habits.lenient).

// Answers says which requests a SotW control plane answers.
type Answers uint8

const (
	// AnswersAll: those for names that it does not have, too.
	AnswersAll Answers = iota
	// AnswersAuto: it is not known.
	AnswersAuto
	// AnswersKnown: only those of which it has every name.
	AnswersKnown
)

const (
	// silenceWait is how long a request may have no answer before names are left out. trialWait is the same for a trial
	// of some of them.
	silenceWait = 2 * time.Second
	trialWait   = 500 * time.Millisecond
	// mostTrials bounds the trials of which none is answered.
	mostTrials = 24
)

// trials is the search for the names that keep a strict control plane from answering.
type trials struct {
	at      time.Time         // when the present wait ends, zero if there is none
	series  bool              // names are being tried
	current []*subscription   // those that are being tried now
	rest    [][]*subscription // those to be tried next, in groups
	vain    int               // trials since the last answer
	heard   bool              // there was an answer in this series
	forced  bool              // the request was sent without a version
	ended   time.Time         // when the last series ended
	changed time.Time         // when the names of the request last changed
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

// isUnseen reports that a name is requested, and nothing came for it on the stream.
func (n *Names) isUnseen(sub *subscription) bool {
	return n.subs[sub.name] == sub && sub.wanted && sub.sent && sub.seen <= n.before
}

// unseen returns the names that are requested, parked or not, and of which nothing came on the stream.
func (n *Names) unseen() (subs []*subscription) {
	for _, name := range n.sorted() {
		if sub := n.subs[name]; n.isUnseen(sub) {
			subs = append(subs, sub)
		}
	}
	return subs
}

// awaitAnswer begins to wait for the answer of a request, unless names are being tried already.
func (s *sotwNames) awaitAnswer(now time.Time) {
	if t := &s.trials; t.at.IsZero() && !t.series && s.names.strict() && len(s.names.unseen()) > 0 {
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
	if !n.strict() {
		s.endTrials(now)
		return
	}
	group := t.current
	if !t.series {
		group = n.unseen()
	}
	group = slices.DeleteFunc(slices.Clone(group), func(sub *subscription) bool { return !n.isUnseen(sub) })
	others := slices.ContainsFunc(s.wanted, func(name string) bool {
		sub := n.subs[name]
		return sub != nil && sub.sent && !sub.parked && !slices.Contains(group, sub)
	})
	switch {
	case len(group) == 0 && !t.series, len(group) == 1 && !others && !t.series:
		return // nobody else waits
	case !t.series && s.version != "" && n.responses == n.before && !t.forced:
		t.forced, s.version, s.repeat = true, "", true
		s.until(now.Add(silenceWait))
		return
	}
	for _, sub := range group {
		sub.parked, sub.first = true, false
	}
	n.parked = n.parks()
	if half := len(group) / 2; half > 0 {
		t.rest = append([][]*subscription{group[:half], group[half:]}, t.rest...)
	}
	s.dirty = true
	if !t.series && others {
		t.series, t.current = true, nil // the others alone
		s.until(now.Add(trialWait))
		return
	}
	t.series = true
	s.nextTrial(now)
}

// nextTrial tries the next names, if there are any.
func (s *sotwNames) nextTrial(now time.Time) {
	n, t := s.names, &s.trials
	for len(t.rest) > 0 && t.vain < mostTrials {
		group := t.rest[0]
		t.rest = t.rest[1:]
		t.current = slices.DeleteFunc(slices.Clone(group), func(sub *subscription) bool { return !n.isUnseen(sub) })
		if len(t.current) == 0 {
			continue
		}
		for _, sub := range t.current {
			sub.parked, sub.fulls = false, n.fulls
		}
		t.vain++
		s.dirty = true
		s.until(now.Add(trialWait))
		return
	}
	s.endTrials(now)
}

// endTrials ends a series. If there was no answer in it, the names were not the reason.
func (s *sotwNames) endTrials(now time.Time) {
	t := &s.trials
	if !t.heard || !s.names.strict() {
		s.unpark()
	}
	more := t.heard && s.names.strict()
	*t = trials{forced: t.forced, ended: now, changed: t.changed}
	s.until(time.Time{})
	s.dirty = true
	s.names.parked = s.names.parks()
	if more && slices.ContainsFunc(s.names.unseen(), func(sub *subscription) bool { return !sub.parked }) {
		s.until(now.Add(silenceWait)) // names that were added meanwhile
	}
}

// unpark requests the parked names again.
func (s *sotwNames) unpark() {
	for _, sub := range s.names.subs {
		if sub.parked {
			sub.parked, sub.fulls = false, s.names.fulls
		}
	}
}

// parks returns how many names are parked.
func (n *Names) parks() (parked int) {
	for _, sub := range n.subs {
		if sub.parked && sub.wanted {
			parked++
		}
	}
	return parked
}

// answeredTrial notes a response.
func (s *sotwNames) answeredTrial(now time.Time, v *accepted) {
	n, t := s.names, &s.trials
	if !n.strict() {
		return
	}
	if n.answers == AnswersAuto && !t.series && !v.hidden && !v.onlyBeats() && !t.changed.IsZero() && now.Sub(t.changed) >= settleTime &&
		slices.ContainsFunc(s.wanted, func(name string) bool { return n.subs[name] != nil && n.subs[name].seen != n.responses }) {
		n.habits.answersAll()
		s.endTrials(now)
		return
	}
	if t.at.IsZero() {
		return
	}
	t.heard, t.vain = true, 0
	waits := t.current
	if !t.series {
		waits = slices.DeleteFunc(n.unseen(), func(sub *subscription) bool { return sub.parked })
	} else if waits == nil {
		return // the others alone: more may be on its way
	}
	if !slices.ContainsFunc(waits, n.isUnseen) {
		s.until(time.Time{})
		s.nextTrial(now)
	}
}

// Heard notes that the control plane has sent a response of another type. It reports whether that changes what is due.
func (s *sotwNames) Heard(now time.Time) bool {
	n, t := s.names, &s.trials
	if t.series || !t.at.IsZero() || n.parked == 0 {
		return false
	}
	t.series, t.heard = true, true
	t.current, t.rest = nil, [][]*subscription{n.unseen()}
	s.until(later(now, t.ended.Add(silenceWait)))
	return true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
