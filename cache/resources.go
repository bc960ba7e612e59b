package cache

import (
	"iter"

	"github.com/xds-relay/xds-relay/hashtable"
)

// Resources are resources by the keys that they are kept under (as Key.Name is an
// entry's), at a cost of few bytes each: mostly the key is the name that a resource
// has in it. nil is empty, and cannot be added to.
type Resources struct {
	own   hashtable.Table[*Resource] // whose key is their name
	other map[string]*Resource       // those of another key
}

// NewResources returns an empty table with room for n.
func NewResources(n int) *Resources {
	rs := &Resources{}
	rs.own.Reserve(n, (*Resource).Name)
	return rs
}

// Len returns how many there are.
func (rs *Resources) Len() int {
	if rs == nil {
		return 0
	}
	return rs.own.Len() + len(rs.other)
}

// Get returns what is kept under a key, nil if nothing is.
func (rs *Resources) Get(key string) *Resource {
	if rs == nil {
		return nil
	}
	if r, found := rs.own.Get(key, (*Resource).Name); found {
		return r
	}
	return rs.other[key]
}

// Put keeps a resource under a key, in the place of what was there.
func (rs *Resources) Put(key string, r *Resource) {
	if r.Name() == key {
		delete(rs.other, key)
		rs.own.Put(key, r, (*Resource).Name)
		return
	}
	rs.own.Remove(key, (*Resource).Name)
	if rs.other == nil {
		rs.other = map[string]*Resource{}
	}
	rs.other[key] = r
}

// Delete drops what is kept under a key.
func (rs *Resources) Delete(key string) {
	if rs != nil {
		rs.own.Remove(key, (*Resource).Name)
		delete(rs.other, key)
	}
}

// All yields everything with its key, in no order. Nothing may be added or dropped
// meanwhile.
func (rs *Resources) All() iter.Seq2[string, *Resource] {
	return func(yield func(string, *Resource) bool) {
		if rs == nil {
			return
		}
		for r := range rs.own.All() {
			if !yield(r.Name(), r) {
				return
			}
		}
		for key, r := range rs.other {
			if !yield(key, r) {
				return
			}
		}
	}
}
