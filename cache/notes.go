package cache

import (
	"container/list"
	"iter"
	"strings"
)

// notes are the changes of a set that do not change its content: heartbeats and errors. They have
// their own order. They are few: a member without TTL and error has none.
type notes struct {
	byKey map[string]*note
	order list.List // of *note, oldest first
	// states counts the names with an error by their state, and ofMembers how many of them are members.
	states    StateCounts
	ofMembers int
}

// note has the newest heartbeat and error of one name.
type note struct {
	key       string // as in Set.members
	seq       uint64 // of the newest of the following
	heartbeat uint64 // of the last heartbeat
	ttlChange uint64 // of the last time that the member got or lost a TTL
	arrival   uint64 // of the last unchanged arrival, for watchers from which the member is withheld
	renewed   uint64 // the member has had its content since that change, but has a newer one: see Set.Refuse
	// err says why the newest state could not be fetched, and failed is its seq. The name need
	// not be a member.
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
		o = &note{key: strings.Clone(key)} // key may share a resource's bytes
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

// setError records why the newest state of a name could not be fetched. member: the name is a member, and stays one
// until the note is removed.
func (n *notes) setError(o *note, err *Error, member bool) {
	n.countError(o, -1)
	o.err, o.member = err, member
	n.countError(o, 1)
}

// countError adds a note with an error to the counts (by is 1), or subtracts it (-1).
func (n *notes) countError(o *note, by int) {
	if o.err == nil {
		return
	}
	n.states[withError(o.err, o.member)] += int64(by)
	if o.member {
		n.ofMembers += by
	}
}

// after iterates over the notes that are newer than seq, in order.
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
