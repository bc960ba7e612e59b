package cache

import (
	"iter"

	"github.com/xds-relay/xds-relay/internal/hashtable"
)

// Resources is a table of resources by their keys (such as the Key.Name of an entry). It needs few
// bytes per resource, because the key is mostly the name in the resource. nil is empty and read-only.
type Resources struct {
	own   hashtable.Table[*Resource] // resources whose key is their name
	other map[string]*Resource       // resources with another key
}

// NewResources returns an empty table with room for n resources.
func NewResources(n int) *Resources {
	rs := &Resources{}
	rs.own.Reserve(n, (*Resource).Name)
	return rs
}

// Len returns the number of resources.
func (rs *Resources) Len() int {
	if rs == nil {
		return 0
	}
	return rs.own.Len() + len(rs.other)
}

// Get returns the resource under a key, nil if there is none.
func (rs *Resources) Get(key string) *Resource {
	if rs == nil {
		return nil
	}
	if r, found := rs.own.Get(key, (*Resource).Name); found {
		return r
	}
	return rs.other[key]
}

// Put stores a resource under a key, and replaces the one that was there.
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

// Grow makes room for one more resource. If it has to make any, it makes room for twice as many as there are. Callers
// that add very many resources, and do not know how many, call it before each Put, and Fit at the end.
func (rs *Resources) Grow() { rs.own.Grow(1, (*Resource).Name) }

// Fit frees the room that Grow made and Put would not have made.
func (rs *Resources) Fit() {
	if rs != nil {
		rs.own.Fit((*Resource).Name)
	}
}

// Delete deletes the resource under a key.
func (rs *Resources) Delete(key string) {
	if rs != nil {
		rs.own.Remove(key, (*Resource).Name)
		delete(rs.other, key)
	}
}

// All iterates over all resources and their keys, in no order. The table must not change during the iteration.
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
