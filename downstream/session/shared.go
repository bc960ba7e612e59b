package session

import (
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/propagation"
)

// What the sessions of several clients share that ask for the same names. Who has it locks it.

// NameList is a list of names that several clients have sent.
type NameList interface {
	// All are the names. Place returns the place of one of them.
	All() []string
	Place(name string) (i uint32, ok bool)
	// Group returns the group of the clients to whom the list means the same, nil if there can
	// be none. Whoever gets it has to enter it.
	Group(GroupKind, Meaning, *cache.Cache) WatchGroup
	// Means says whether it means resources of its names to a client, in the scope of the first, which
	// means that key; and whether the client may have all of them.
	Means(first cache.Key, client Meaning) bool
}

// Meaning is what a list means to a client.
type Meaning interface {
	// Means says whether all names mean resources of these names, in the scope of the first,
	// which means that key.
	Means(names []string, first cache.Key) bool
	// MayHaveAll and Class are those of the client's Rights, true and 0 without.
	MayHaveAll(names []string, first cache.Key) bool
	Class() uint64
	// Configuration is the generation of the configuration by which the client has them.
	Configuration() uint32
}

// GroupKind is what the clients of a group have in common, besides their list of names.
type GroupKind struct {
	First cache.Key // what the first name means; the others are in the same scope
	Form  cache.Form
	SotW  bool
}

// WatchGroup watches the names in a list for those who have sent it. It numbers their changes.
type WatchGroup interface {
	List() NameList
	groupMembers
	groupChanges
	groupTotals
}

type groupMembers interface {
	// Enter adds a client. It returns the bytes of all resources, and the names that each client
	// watches by itself.
	Enter(*Member) (bytes int, individual []uint32)
	Leave(*Member)
	// ShowNew has a client be on the new side of a rollout, of which some names differ, or all. It
	// returns an entry of that side. It returns nil if none of the group's names differs: then the client
	// stays where it is. owed are the changes that count the client, of those after a number, which it gets
	// on the new side. The cache is not held.
	ShowNew(m *Member, after uint64, names []string, all bool) (e *cache.Entry, owed *propagation.List)
	// ShowAccepted has a client be on the accepted side again. The cache is not held.
	ShowAccepted(m *Member, after uint64) (owed *propagation.List)
	// Resume notes that a client has come which may hold the names from an earlier stream.
	Resume(*cache.Reader)
}

type groupChanges interface {
	// Newest is where a client is that was sent everything there is on a side. It does not change while the
	// cache is held, but on the new side when more names are watched there.
	Newest(onNew bool) Position
	// NewsSince returns what is new to a client of a side that was sent everything up to a position. It
	// may be kept for as long as the cache is held.
	NewsSince(at Position, onNew bool) *News
	// SentAt returns a name's entry on a side, and what a client holds of the name that was sent
	// everything up to a position: the mark of its resource, 0 for none. changed says that the side may
	// have something else.
	SentAt(i uint32, at Position, onNew bool) (e *cache.Entry, mark uint64, changed bool)
	// ChangedAt is the number of a name's last change on a side.
	ChangedAt(i uint32, onNew bool) uint64
	// ChangesSince returns the changes of a side that are measured and came after that one.
	ChangesSince(seq uint64, onNew bool) *propagation.List
}

// groupTotals is what is known of all names but some together, as a client holds them that was sent
// everything up to a position. The cache is held.
type groupTotals interface {
	// Held is how many have resources, and the sum of their digests.
	Held(at Position, but NameBits) (n int, sum uint64)
	// Origin is the version of the origin that they all have, nil if they have not one.
	Origin(at Position, but NameBits) *cache.OriginVersion
}

// Position says up to which of a group's changes a client was sent everything. The zero value is a client
// that was sent nothing.
type Position struct {
	Seq uint64
	New bool // on the new side of a rollout
}

// Member is a client in a group.
type Member struct {
	Host  Host
	Index int32 // for the group
	OnNew bool  // it is on the new side of a rollout; for the group
	// Since is the number of the newest change when the client came to the side. The group sets it.
	Since uint64
}

// NameBits are some names of a list, by their places; nil is none.
type NameBits []uint64

// Has says whether the name with that place is one of them.
func (b NameBits) Has(i uint32) bool { return b != nil && b[i/64]&(1<<(i%64)) != 0 }

func (b *NameBits) set(i uint32, of int) {
	if *b == nil {
		*b = make(NameBits, (of+63)/64)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

// News is what is new to a client that was sent everything up to a change.
type News struct {
	Bytes    mem.SliceBuffer // of all, if they are in one piece
	From, To Position
	Odd      []uint32
	Names    []uint32
	States   []*cache.State // of names
	Parts    mem.BufferSlice
	Size     int
	Sent     NameSample
	// HoldsSecret: there is a secret in one of the resources.
	HoldsSecret bool
	// Changes are those that are measured, unless From is 0: see Member.Since.
	Changes *propagation.List
}

// addNews adds what is sent to all clients of a group that were sent the same before. The
// response is empty.
func (r *Response) addNews(n *News) {
	if len(n.Names) == 0 {
		return
	}
	r.resources = n.Parts[:len(n.Parts):len(n.Parts)] // who appends has another
	r.size, r.Count, r.substantial = r.size+n.Size, len(n.Names), true
	r.Names = n.Sent
	r.holdsSecret = r.holdsSecret || n.HoldsSecret
	for _, st := range n.States {
		r.noteChanged(st.Resource)
	}
	var origin *cache.OriginVersion
	for k, st := range n.States {
		if k == 0 || st.Origin != origin {
			origin = st.Origin
			r.from(origin)
		}
	}
}
