package cache

// Room is the largest number of keys that a map has had. Go's maps do not free memory when
// keys are deleted. The zero value is the Room of an empty map.
type Room int

// A map is copied when it has at most 1/sparse of the keys that it has had, so that the cost of the
// copy is spread over the removals before it. Small maps are not worth it.
const (
	leastRoom = 128
	sparse    = 8
)

// sparse reports whether a map of n keys has room for many more.
func (r Room) sparse(n int) bool { return r >= leastRoom && n <= int(r)/sparse }

// Without deletes a key from a map, and returns the map, or a smaller copy if most of its keys
// have been deleted. room belongs to the map: all of its keys must be deleted with Without. A range
// loop that is in progress continues over the old map.
func Without[M ~map[K]V, K comparable, V any](m M, room *Room, key K) M {
	*room = max(*room, Room(len(m)))
	delete(m, key)
	if !room.sparse(len(m)) {
		return m
	}
	*room = Room(len(m))
	small := make(M, len(m))
	for k, v := range m {
		small[k] = v
	}
	return small
}

// fitted returns a list, or a smaller copy of it if most of its capacity is unused.
func fitted[S ~[]E, E any](list S) S {
	if !Room(cap(list)).sparse(len(list)) {
		return list
	}
	return append(make(S, 0, 2*len(list)), list...)
}
