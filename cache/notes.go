package cache

import (
	"container/list"
	"iter"
	"strings"
)

// notes are what is new about names of a set besides their content: heartbeats,
// and errors. They are in an order of their own, and few: a member without TTL
// and error has none.
type notes struct {
	byKey map[string]*note
	order list.List // of *note, oldest first
}

// note is what is new about one name.
type note struct {
	key       string // as in Set.members
	seq       uint64 // of the newest of it
	heartbeat uint64 // of the last heartbeat
	ttlChange uint64 // of the last coming to have a TTL, or to have none
	arrival   uint64 // of the last coming unchanged, for those from whom the member is kept
	// err is why the newest state could not be had, and failed its seq. It may be of
	// a name that is no member.
	err     *Error
	failed  uint64
	element *list.Element // in notes.order
}

// renew returns the note of a key, new if there is none, as the newest.
func (n *notes) renew(key string, seq uint64) *note {
	o := n.byKey[key]
	if o == nil {
		if n.byKey == nil {
			n.byKey = map[string]*note{}
		}
		o = &note{key: strings.Clone(key)} // it may be a part of a resource
		o.element = n.order.PushBack(o)
		n.byKey[key] = o
	}
	n.order.MoveToBack(o.element)
	o.seq = seq
	return o
}

// remove drops a note, which may be nil.
func (n *notes) remove(o *note) {
	if o != nil {
		n.order.Remove(o.element)
		delete(n.byKey, o.key)
	}
}

// after yields the notes that are newer than seq, in order.
func (n *notes) after(seq uint64) iter.Seq[*note] {
	return func(yield func(*note) bool) {
		first := n.order.Back()
		for first != nil && first.Prev() != nil && first.Prev().Value.(*note).seq > seq {
			first = first.Prev()
		}
		for e := first; e != nil; e = e.Next() {
			if o := e.Value.(*note); o.seq > seq && !yield(o) {
				return
			}
		}
	}
}
