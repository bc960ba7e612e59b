package propagation

import (
	"slices"
	"sync/atomic"
)

// List is the changes that a response brings a client. It does not change, so that clients can share it. nil is
// none.
type List struct {
	change *Change
	rest   *List
	n      int // of this and the rest
}

// With returns the changes of both lists.
func (l *List) With(more *List) *List {
	switch {
	case l == nil:
		return more
	case more == nil:
		return l
	}
	return &List{change: more.change, rest: l.With(more.rest), n: l.n + more.n}
}

// Sent counts the client as sent all of them.
func (l *List) Sent() { l.reached(Sent) }

// ACKed counts the client as having accepted all of them.
func (l *List) ACKed() { l.reached(ACKed) }

func (l *List) reached(s Stage) {
	for ; l != nil; l = l.rest {
		l.change.reached(s)
	}
}

// NotSent and NotACKed count the client as one that will not be sent them, or will not accept
// them.
func (l *List) NotSent() { l.gone(Sent) }

// NotACKed is described at NotSent.
func (l *List) NotACKed() { l.gone(ACKed) }

// Spared counts the client as one that needs none of them.
func (l *List) Spared() {
	l.NotSent()
	l.NotACKed()
}

func (l *List) gone(s Stage) {
	for ; l != nil; l = l.rest {
		l.change.gone(s)
	}
}

// open returns those that are still measured, in the same order.
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

// Owed are the changes that a client is to be sent. Its methods may be called concurrently. The zero value has
// none.
type Owed struct{ list atomic.Pointer[List] }

const (
	// maxOwed bounds what is remembered for a client that is sent nothing, besides what is given up
	// anyway.
	maxOwed = 2 * maxOpen
	// mostKept is how many of these stay when there are maxOwed: so that the next ones are looked through only after some
	// more have come.
	mostKept = maxOwed * 3 / 4
)

// Add notes that the client is to be sent a change, which may be nil and is not open yet, and counts the client.
func (o *Owed) Add(c *Change) {
	if c == nil {
		return
	}
	for {
		was := o.list.Load()
		if was.has(c) {
			return
		}
		kept, spared := was, (*List)(nil)
		if was != nil && was.n >= maxOwed {
			if kept = was.open(); kept != nil && kept.n > mostKept {
				kept, spared = nil, kept
			}
		}
		if o.list.CompareAndSwap(was, kept.With(&c.alone)) {
			spared.Spared()
			c.Expect(1)
			return
		}
	}
}

// has reports whether a change is among them that is not open yet. What came after it is before it in the list. So it is
// not behind a change that was open already when it began: only those are looked at that come at the same time.
func (l *List) has(c *Change) bool {
	for ; l != nil && !l.change.wasOpenAt(c.begun); l = l.rest {
		if l.change == c {
			return true
		}
	}
	return false
}

// AddAll notes that the client is to be sent some changes that count it already.
func (o *Owed) AddAll(more *List) {
	for more != nil {
		was := o.list.Load()
		if o.list.CompareAndSwap(was, was.With(more)) {
			return
		}
	}
}

// Take returns the changes, and forgets them.
func (o *Owed) Take() *List {
	if o.list.Load() == nil {
		return nil
	}
	return o.list.Swap(nil)
}

// None says that there are none.
func (o *Owed) None() bool { return o.list.Load() == nil }

// Numbered are the changes of one watch group, each with the number that the group gave it.
type Numbered struct {
	changes []numbered
}

type numbered struct {
	seq    uint64
	change *Change
}

// Add notes a change, which may be nil, with its number, and counts the group's clients once for it.
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

// Since returns the changes with numbers above that one.
func (n *Numbered) Since(seq uint64) (l *List) {
	for i := len(n.changes) - 1; i >= 0 && n.changes[i].seq > seq; i-- {
		if c := n.changes[i].change; !c.closed.Load() {
			l = l.With(&c.alone)
		}
	}
	return l
}
