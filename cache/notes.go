package cache

import (
	"container/list"
	"iter"
	"strings"
)

// notes are what changes of a set other than its content: heartbeats and errors. They have their own
// order, and are few: a member without TTL and error has none.
type notes struct {
	byKey map[string]*note
	order list.List // of *note, oldest first
	// states are those of the names with an error, and ofMembers is how many of these are members.
	states    StateCounts
	ofMembers int
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
	member  bool          // with err: the name is a member
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
		n.countError(o, -1)
		n.order.Remove(o.element)
		delete(n.byKey, o.key)
	}
}

// setError sets why the newest state of a name could not be fetched. member: the name is a member, and stays one until
// the note is removed.
func (n *notes) setError(o *note, err *Error, member bool) {
	n.countError(o, -1)
	o.err, o.member = err, member
	n.countError(o, 1)
}

// countError counts a note with an error (by is 1), or counts it no more (-1).
func (n *notes) countError(o *note, by int) {
	if o.err == nil {
		return
	}
	n.states[withError(o.err, o.member)] += int64(by)
	if o.member {
		n.ofMembers += by
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
