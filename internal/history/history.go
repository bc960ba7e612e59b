package history

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// MostBytes is how much a History keeps, and leastShare how much each of its rings may keep however many there are.
const (
	MostBytes  = 4 << 20
	leastShare = 64 << 10
)

// History has the last changes of all authorities, and the last events.
type History struct {
	log     *slog.Logger
	bytes   int64 // what it may keep
	on      atomic.Bool
	numbers atomic.Uint64
	cost    atomic.Int64 // of all rings
	events  ring

	mu   sync.Mutex
	logs map[string]*Log
	n    atomic.Int64 // the number of logs
}

// New returns an empty History that keeps about this many bytes. It keeps nothing before Keep. The lines about changes
// go to log.
func New(bytes int, log *slog.Logger) *History {
	return &History{log: log, bytes: int64(bytes), logs: map[string]*Log{}}
}

// Keep turns keeping on or off. What was kept stays.
func (h *History) Keep(on bool) { h.on.Store(on) }

// Authority returns the Log of an authority, by the name under which it is configured: there must be few of them.
func (h *History) Authority(configured string) *Log {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.logs[configured]
	if l == nil {
		l = &Log{history: h}
		h.logs[configured] = l
		h.n.Add(1)
	}
	return l
}

// share returns how many bytes a ring may keep if there is no room for more. An authority does not push out what
// another one has within its share. So there may be up to twice the bytes that the History may keep.
func (h *History) share() int {
	const rings = 2 // of an authority
	return max(int(h.bytes)/(rings*int(h.n.Load())+1), leastShare)
}

// After returns the entries after a number and since a time, in their order. settled: it returns only entries that do not
// change any more, and none after one that may.
func (h *History) After(number uint64, since time.Time, settled bool) []*Entry {
	h.mu.Lock()
	rings := make([]*ring, 1, 1+2*len(h.logs))
	rings[0] = &h.events
	for _, l := range h.logs {
		rings = append(rings, &l.changes, &l.first)
	}
	h.mu.Unlock()
	var all []*Entry
	for _, r := range rings {
		all = r.since(number, since, all)
	}
	slices.SortFunc(all, func(a, b *Entry) int { return cmp.Compare(a.Number, b.Number) })
	if settled {
		now := time.Now()
		if i := slices.IndexFunc(all, func(e *Entry) bool { return !e.settled(now) }); i >= 0 {
			all = all[:i]
		}
	}
	return all
}

// Newest returns the number of the newest entry.
func (h *History) Newest() uint64 { return h.numbers.Load() }
