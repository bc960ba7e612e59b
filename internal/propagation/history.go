package propagation

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// The measurements of the last hour: for each Kind, the longest times of each step, so that an operator sees
// how they develop. The memory depends on the number of Kinds, and not on the number of clients.

const (
	// Step is the length of a Period.
	Step = 30 * time.Second
	// Kept is the length of a history.
	Kept = time.Hour
	// maxHistories is the maximal number of Kinds with a history. Other Kinds are measured without one.
	maxHistories = 256
)

// Period has the changes that were opened in one Step.
type Period struct {
	// Begins is when the Period begins, a multiple of Step since the epoch.
	Begins  time.Time
	Changes int                               // number of changes
	longest [stages][milestones]time.Duration // 0 if no change has reached the stage
	missed  [stages]int64
}

// Longest returns the longest time among the changes until a client reached a stage, 0 if that did not happen for any.
func (p *Period) Longest(stage Stage, client Client) time.Duration { return p.longest[stage][client] }

// Missed returns how many clients had not reached a stage when the changes were given up.
func (p *Period) Missed(stage Stage) int64 { return p.missed[stage] }

// Include adds the changes of another Period.
func (p *Period) Include(more *Period) {
	p.Changes += more.Changes
	for s := range stages {
		for c := range milestones {
			p.longest[s][c] = max(p.longest[s][c], more.longest[s][c])
		}
		p.missed[s] += more.missed[s]
	}
}

// history has the Periods of a Kind in which changes were opened, the oldest first. nil keeps nothing.
type history struct {
	mu      sync.Mutex
	periods []Period
}

// periodOf returns when the Period that contains a time begins.
func periodOf(t time.Time) time.Time {
	return time.Unix(t.Unix()-t.Unix()%int64(Step/time.Second), 0)
}

// note calls f with the Period that begins at a time, which it adds if necessary.
func (h *history) note(begins time.Time, f func(*Period)) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	i := len(h.periods) // the Period is near the end
	for i > 0 && h.periods[i-1].Begins.After(begins) {
		i--
	}
	if i == 0 || !h.periods[i-1].Begins.Equal(begins) {
		h.periods = slices.Insert(h.periods, i, Period{Begins: begins})
		i++
	}
	f(&h.periods[i-1])
	if len(h.periods) > int(Kept/Step) { // the Periods are different, so the first is too old
		h.periods = slices.Delete(h.periods, 0, 1)
	}
}

// since returns a copy of the Periods that begin at a time or later.
func (h *history) since(begins time.Time) []Period {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.periods), func(p Period) bool { return p.Begins.Before(begins) })
}

// Kinds returns the Kinds that have a history, sorted by authority and type, and the number of Kinds without one.
func (t *Tracker) Kinds() (kinds []Kind, without int) {
	if t == nil {
		return nil, 0
	}
	t.mu.Lock()
	for k, l := range t.lines {
		if l.history == nil {
			without++
			continue
		}
		kinds = append(kinds, k)
	}
	t.mu.Unlock()
	slices.SortFunc(kinds, func(a, b Kind) int {
		return cmp.Or(cmp.Compare(a.Authority, b.Authority), cmp.Compare(a.Type, b.Type), cmp.Compare(order(a.RolledOut), order(b.RolledOut)))
	})
	return kinds, without
}

func order(rolledOut bool) int {
	if rolledOut {
		return 1
	}
	return 0
}

// History returns the Periods of the last hour in which changes of a Kind were opened, the oldest first.
func (t *Tracker) History(kind Kind) []Period {
	t.mu.Lock()
	l := t.lines[kind]
	t.mu.Unlock()
	if l == nil {
		return nil
	}
	return l.history.since(periodOf(time.Now()).Add(Step - Kept))
}
