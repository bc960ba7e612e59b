package downstream

import (
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
)

// What the sessions of several clients share that ask for the same names. Who has it locks it.

// sharedNames is a list of names that several clients have sent.
type sharedNames interface {
	// all are the names, and place is that of one of them.
	all() []string
	place(name string) (i uint32, ok bool)
	// group returns the group of the clients to whom the list means the same, nil if there can
	// be none. Who has got it has to enter it.
	group(groupKind, meaning, *cache.Cache) nameGroup
}

// meaning is what a list means to a client.
type meaning interface {
	// means says whether all names mean resources of these names, in the scope of the first,
	// which means that key.
	means(names []string, first cache.Key) bool
}

// groupKind is what the clients of a group have in common, besides their list of names.
type groupKind struct {
	first cache.Key // what the first name means; the others are in the same scope
	form  cache.Form
	sotw  bool
}

// nameGroup watches the names in a list for those who have sent it. It numbers their changes.
type nameGroup interface {
	list() sharedNames
	membered
	numbered
	totaled
}

type membered interface {
	// enter adds a client. It returns the bytes of all resources, and the names that each client
	// watches by itself.
	enter(*member) (bytes int, odd []uint32)
	leave(*member)
}

type numbered interface {
	// newest is the number of the newest change. It does not change while the cache is held.
	newest() uint64
	// newsSince returns what there is to tell who was told everything up to a change: 0 is
	// nothing. It may be kept for as long as the cache is held.
	newsSince(seq uint64) *groupNews
	// toldAt returns a name's entry, and what a client holds of the name that was told everything
	// up to a change: the mark of its resource, 0 for none. changed says that there was
	// something since.
	toldAt(i uint32, seq uint64) (e *cache.Entry, mark uint64, changed bool)
}

// totaled is what is known of all names but some together. The cache is held.
type totaled interface {
	// held is how many have resources, and the sum of their digests.
	held(but nameBits) (n int, sum uint64)
	// origin is the version of the origin that they all have, nil if they have not one.
	origin(but nameBits) *cache.OriginVersion
}

// member is a client in a group.
type member struct {
	host  host
	index int // the group's
}

// nameBits are some names of a list, by their places; nil is none.
type nameBits []uint64

func (b nameBits) has(i uint32) bool { return b != nil && b[i/64]&(1<<(i%64)) != 0 }

func (b *nameBits) set(i uint32, of int) {
	if *b == nil {
		*b = make(nameBits, (of+63)/64)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

// groupNews is what there is to tell a client that was told everything up to a change.
type groupNews struct {
	bytes    mem.SliceBuffer // of all, if they are joined
	from, to uint64
	odd      []uint32
	names    []uint32
	states   []*cache.State // of names
	clusters []*cache.Resource
	parts    mem.BufferSlice
	size     int
	told     nameList
}
