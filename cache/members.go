package cache

import "strings"

// The members of a set: found by their keys, and in the order of their last change.

// member is one resource of a set, or the memory of one. There may be hundreds of
// thousands: another field here costs as much for each.
type member struct {
	resource *Resource // what it is; what it was, if it is removed
	born     uint64    // seq of its coming; coming back while its removal is remembered is no new coming
	seq      uint64    // of its last change; 0 once forgotten

	prev, next *member

	removed bool
	renamed bool // its key is in members.keys
}

// members are those of a set by their keys (Change.Name), which mostly are the names
// that the resources have.
type members struct {
	index index[member]
	keys  map[*member]string // of those whose resource has another name
}

// key is what a member is kept under. It is a part of its resource: see Resource.Name.
func (ms *members) key(m *member) string {
	if m.renamed {
		return ms.keys[m]
	}
	return m.resource.Name()
}

func (ms *members) len() int { return ms.index.used }

func (ms *members) get(key string) *member { return ms.index.get(key, ms.key) }

// add adds a new member.
func (ms *members) add(key string, m *member, r *Resource) {
	ms.setAs(key, m, r)
	ms.index.put(key, m, ms.key)
}

// set gives a member another resource.
func (ms *members) set(m *member, r *Resource) { ms.setAs(ms.key(m), m, r) }

func (ms *members) setAs(key string, m *member, r *Resource) {
	switch renamed := r.Name() != key; {
	case renamed && !m.renamed:
		if ms.keys == nil {
			ms.keys = map[*member]string{}
		}
		ms.keys[m] = strings.Clone(key)
		m.renamed = true
	case !renamed && m.renamed:
		delete(ms.keys, m)
		m.renamed = false
	}
	m.resource = r
}

// remove forgets a member.
func (ms *members) remove(m *member) {
	ms.index.remove(ms.key(m), ms.key)
	delete(ms.keys, m)
}

// order is a doubly linked list of members by their last change, oldest first.
type order struct{ front, back *member }

func (o *order) pushBack(m *member) {
	m.prev, m.next = o.back, nil
	if o.back == nil {
		o.front = m
	} else {
		o.back.next = m
	}
	o.back = m
}

func (o *order) remove(m *member) {
	if m.prev == nil {
		o.front = m.next
	} else {
		m.prev.next = m.next
	}
	if m.next == nil {
		o.back = m.prev
	} else {
		m.next.prev = m.prev
	}
	m.prev, m.next = nil, nil
}
