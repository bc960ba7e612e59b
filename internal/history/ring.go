package history

import (
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

const (
	// mostEntries bounds the entries of one ring.
	mostEntries = 4096
	// apart is how many entries a ring gets within a window before later responses are added to existing ones.
	apart = 16
	// settles is the length of a window. An entry does not change after that.
	settles = time.Second
)

// ring has the last entries of one kind and authority, the oldest first.
type ring struct {
	mu      sync.Mutex
	entries []*Entry
	cost    int
	window  time.Time // when the present window began
	opened  int       // entries of the window
	open    map[topics]*Entry
}

// topics are those that an entry is about. kept: it has what clients do not get yet.
type topics struct {
	scope   cache.Scope
	typeURL string
	kept    bool
}

// add adds an entry, or adds it to that of the same topics if the window has more than most entries.
func (r *ring) add(h *History, e *Entry, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.window) >= settles {
		clear(r.open)
		r.window, r.opened = now, 0
	}
	k := topics{e.Scope, e.TypeURL, len(e.Kept) > 0}
	if was := r.open[k]; was != nil && r.opened >= most {
		before := was.cost
		was.merge(e)
		r.spend(h, was.cost-before)
		return
	}
	r.opened++
	if r.open == nil {
		r.open = map[topics]*Entry{}
	}
	e = e.keep(now)
	e.Number = h.numbers.Add(1)
	r.open[k] = e
	r.entries = append(r.entries, e)
	r.spend(h, e.cost)
}

// spend notes that the ring takes more bytes, and drops the oldest entries that have no room. The newest one stays. The
// caller holds mu.
func (r *ring) spend(h *History, bytes int) {
	r.cost += bytes
	h.cost.Add(int64(bytes))
	n := 0
	for n < len(r.entries)-1 && (len(r.entries)-n > mostEntries || r.cost > h.share() && h.cost.Load() > h.bytes) {
		old := r.entries[n]
		r.entries[n] = nil
		if k := (topics{old.Scope, old.TypeURL, len(old.Kept) > 0}); r.open[k] == old {
			delete(r.open, k)
		}
		r.cost -= old.cost
		h.cost.Add(-int64(old.cost))
		n++
	}
	r.entries = r.entries[n:] // append moves the rest to another array at times
}

// since appends the entries after a number and since a time.
func (r *ring) since(number uint64, at time.Time, to []*Entry) []*Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	from := sort.Search(len(r.entries), func(i int) bool { e := r.entries[i]; return e.Number > number && !e.At.Before(at) })
	now := time.Now()
	for _, e := range r.entries[from:] {
		if !e.settled(now) {
			copied := *e
			copied.Changes, copied.Kept = slices.Clone(e.Changes), slices.Clone(e.Kept)
			e = &copied
		}
		to = append(to, e)
	}
	return to
}

// settled reports whether an entry does not change any more.
func (e *Entry) settled(now time.Time) bool { return now.Sub(e.At) >= settles }

// keep returns the entry in the form in which it is kept.
func (e *Entry) keep(now time.Time) *Entry {
	kept := new(Entry)
	*kept = *e
	kept.At = now
	kept.Server = short(e.Server)
	kept.Receipt.Version, kept.Receipt.Nonce = short(e.Receipt.Version), short(e.Receipt.Nonce)
	kept.Changes = slices.Clip(e.Changes)
	kept.cost = costOfEntry + len(e.Kept)*costOfChange
	for i := range kept.Changes {
		kept.cost += kept.Changes[i].cost()
	}
	return kept
}

// addEvent adds an event.
func (r *ring) addEvent(h *History, e *Event, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	entry := &Entry{At: time.Now(), Event: e, cost: costOfEntry + bytes}
	entry.Number = h.numbers.Add(1)
	r.entries = append(r.entries, entry)
	r.spend(h, entry.cost)
}
