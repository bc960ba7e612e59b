package propagation

import (
	"slices"
	"sync/atomic"
	"time"
)

// List has the changes that a response contains for a client. It is immutable, so that clients can share it. nil is
// empty.
type List struct {
	change *Change
	rest   *List
	n      int // number of changes, including rest
}

// With returns a list with the changes of both lists.
func (l *List) With(more *List) *List {
	switch {
	case l == nil:
		return more
	case more == nil:
		return l
	}
	return &List{change: more.change, rest: l.With(more.rest), n: l.n + more.n}
}

// Sent counts all changes as sent to the client.
func (l *List) Sent() { l.reached(Sent) }

// ACKed counts all changes as accepted by the client.
func (l *List) ACKed() { l.reached(ACKed) }

func (l *List) reached(s Stage) {
	for ; l != nil; l = l.rest {
		l.change.reached(s)
	}
}

// NotSent counts the client as one that will not receive the changes.
func (l *List) NotSent() { l.gone(Sent) }

// NotACKed counts the client as one that will not accept the changes.
func (l *List) NotACKed() { l.gone(ACKed) }

// NACKed counts the client as one that has rejected the changes.
func (l *List) NACKed() {
	if l == nil {
		return
	}
	now := time.Now().UnixNano()
	for c := l; c != nil; c = c.rest {
		c.change.nacked.Add(1)
		c.change.lastNACK.Store(now)
	}
	l.NotACKed()
}

// Spared counts the client as one that does not need the changes.
func (l *List) Spared() {
	l.NotSent()
	l.NotACKed()
}

func (l *List) gone(s Stage) {
	for ; l != nil; l = l.rest {
		l.change.gone(s)
	}
}

// open returns the changes that are still measured, in the same order.
func (l *List) open() *List {
	changes := make([]*Change, 0, maxOwed)
	for ; l != nil; l = l.rest {
		if !l.change.closed.Load() {
			changes = append(changes, l.change)
		}
	}
	var all *List
	for _, c := range slices.Backward(changes) {
		all = all.With(&c.alone)
	}
	return all
}

// Owed has the changes that the relay still has to send to a client. Its methods may be called concurrently. The zero
// value is empty.
type Owed struct{ list atomic.Pointer[List] }

const (
	// maxOwed bounds the number of changes kept for a client that does not receive anything.
	maxOwed = 2 * maxOpen
	// mostKept is the maximal number of changes that stay when a client has maxOwed. It is lower, so that the list is
	// searched for closed changes only after some more have come.
	mostKept = maxOwed * 3 / 4
)

// Add adds a change, and counts the client for it. The change may be nil, and must not be open yet.
func (o *Owed) Add(c *Change) {
	if c == nil {
		return
	}
	for {
		old := o.list.Load()
		if old.has(c) {
			return
		}
		kept, spared := old, (*List)(nil)
		if old != nil && old.n >= maxOwed {
			if kept = old.open(); kept != nil && kept.n > mostKept {
				kept, spared = nil, kept
			}
		}
		if o.list.CompareAndSwap(old, kept.With(&c.alone)) {
			spared.Spared()
			c.Expect(1)
			return
		}
	}
}

// has reports whether the list has a change that is not open yet. Newer changes come first in the list. So has stops at
// a change that was open when c began: c cannot come after it. It visits only the changes of about the same time.
func (l *List) has(c *Change) bool {
	for ; l != nil && !l.change.wasOpenAt(c.begun); l = l.rest {
		if l.change == c {
			return true
		}
	}
	return false
}

// AddAll adds changes for which the client has been counted already.
func (o *Owed) AddAll(more *List) {
	for more != nil {
		old := o.list.Load()
		if o.list.CompareAndSwap(old, old.With(more)) {
			return
		}
	}
}

// Take removes all changes, and returns them.
func (o *Owed) Take() *List {
	if o.list.Load() == nil {
		return nil
	}
	return o.list.Swap(nil)
}

// None reports whether there are no changes.
func (o *Owed) None() bool { return o.list.Load() == nil }

// Numbered has the changes of one watch group, each with the number that the group gave it.
type Numbered struct {
	changes []numbered
}

type numbered struct {
	seq    uint64
	change *Change
}

// Add adds a change with its number, and counts the group's clients once for it. The change may be nil.
func (n *Numbered) Add(c *Change, seq uint64, clients int) {
	if c == nil || len(n.changes) > 0 && n.changes[len(n.changes)-1].change == c {
		return
	}
	if len(n.changes) >= maxOwed {
		kept := n.changes[:0]
		for _, old := range n.changes {
			if !old.change.closed.Load() {
				kept = append(kept, old)
			}
		}
		clear(n.changes[len(kept):])
		n.changes = kept
	}
	c.Expect(clients)
	n.changes = append(n.changes, numbered{seq, c})
}

// Since returns the changes with numbers above seq that are still measured.
func (n *Numbered) Since(seq uint64) (l *List) {
	for i := len(n.changes) - 1; i >= 0 && n.changes[i].seq > seq; i-- {
		if c := n.changes[i].change; !c.closed.Load() {
			l = l.With(&c.alone)
		}
	}
	return l
}
