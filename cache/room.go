package cache

// Room is the largest number of keys that a map has had. Go's maps do not give memory back when
// keys are deleted. The zero value is that of an empty map.
type Room int

// A map is made anew when it has as few as one in sparse of the keys that it has had, so that
// what that costs is shared by the removals before it. Small ones are not worth it.
const (
	leastRoom = 128
	sparse    = 8
)

// sparse reports whether a map of n keys has room for many more.
func (r Room) sparse(n int) bool { return r >= leastRoom && n <= int(r)/sparse }

// Without deletes a key from a map, and returns the map, or a smaller copy if most of its keys
// are deleted. had belongs to the map: delete all of its keys with Without. A range over the map
// that is under way goes on over the old one.
func Without[M ~map[K]V, K comparable, V any](m M, had *Room, key K) M {
	*had = max(*had, Room(len(m)))
	delete(m, key)
	if !had.sparse(len(m)) {
		return m
	}
	*had = Room(len(m))
	small := make(M, len(m))
	for k, v := range m {
		small[k] = v
	}
	return small
}

// fitted is a list, or a copy of it if most of its room is empty.
func fitted[S ~[]E, E any](list S) S {
	if !Room(cap(list)).sparse(len(list)) {
		return list
	}
	return append(make(S, 0, 2*len(list)), list...)
}
