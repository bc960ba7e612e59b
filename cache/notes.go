package cache

import (
	"container/list"
	"iter"
	"strings"
)

// notes are the news of a set besides its content: heartbeats and errors. They have their own
// order, and are few: a member without TTL and error has none.
type notes struct {
	byKey map[string]*note
	order list.List // of *note, oldest first
}

// note is the news of one name.
type note struct {
	key       string // as in Set.members
	seq       uint64 // of the newest news
	heartbeat uint64 // of the last heartbeat
	ttlChange uint64 // of the last time that a TTL came or went
	arrival   uint64 // of the last unchanged arrival, for watchers from which the member is withheld
	// err says why the newest state could not be fetched, and failed is its seq. The name may
	// be no member.
	err     *Error
	failed  uint64
	element *list.Element // in notes.order
}

// renew makes the note of a key the newest, and returns it. It adds one if there is none.
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

// remove deletes a note, which may be nil.
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
