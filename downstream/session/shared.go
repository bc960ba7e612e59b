package session

import (
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/propagation"
)

// What the sessions of several clients with the same names share. The implementations lock it.

// NameList is a list of names that several clients have sent.
type NameList interface {
	// All returns the names. Place returns the place of one of them.
	All() []string
	Place(name string) (i uint32, ok bool)
	// Group returns the group of the clients to whom the list means the same, nil if there can be none. The caller has
	// to enter it.
	Group(GroupKind, Meaning, *cache.Cache) WatchGroup
	// Means reports whether, for a client, the list means resources with its names in the scope of first, the first
	// name's key, and whether the client may have all of them.
	Means(first cache.Key, client Meaning) bool
}

// Meaning is what a list means to a client.
type Meaning interface {
	// Means reports whether all names mean resources with these names in the scope of first, the first name's key.
	Means(names []string, first cache.Key) bool
	// MayHaveAll and Class are those of the client's Rights, or true and 0 without Rights.
	MayHaveAll(names []string, first cache.Key) bool
	Class() uint64
	// Configuration is the generation of the configuration that gives the client these meanings and rights.
	Configuration() uint32
	// Begun records that one more subscription to a name has begun because of the client. Other goroutines may run
	// meanwhile.
	Begun()
}

// GroupKind is what the clients of a group have in common, apart from their list of names.
type GroupKind struct {
	First cache.Key // the first name's key; the others are in the same scope
	Form  cache.Form
	SotW  bool
}

// WatchGroup watches the names in a list for the clients that have sent it. It numbers their changes.
type WatchGroup interface {
	List() NameList
	groupMembers
	groupChanges
	groupTotals
}

type groupMembers interface {
	// First returns the entry of the first name, on the accepted side. The group may have stopped watching it, but
	// watches others in its scope.
	First() *cache.Entry
	// Enter adds a client. It returns the bytes of all resources, and the names that each client watches individually.
	Enter(*Member) (bytes int, individual []uint32)
	// GiveUp records that a client in the group has unsubscribed from a name, which Member.GaveUp has. When all of them
	// have, the group stops watching the name, until a client comes that has not.
	GiveUp(i uint32)
	// Leave removes a client. owed are the changes after the given number that count the client.
	Leave(m *Member, after uint64) (owed *propagation.List)
	// ShowNew moves a client to the new side of a rollout, where some names differ, or all. It returns an entry of that
	// side. If none of the group's names differs, it returns nil, and the client stays where it is. owed are the
	// changes after the given number that count the client, and that it gets on the new side. The cache is not held.
	ShowNew(m *Member, after uint64, names []string, all bool) (e *cache.Entry, owed *propagation.List)
	// ShowAccepted moves a client back to the accepted side. The cache is not held.
	ShowAccepted(m *Member, after uint64) (owed *propagation.List)
	// Resume records that a new client may hold the names from an earlier stream.
	Resume(*cache.Reader)
}

type groupChanges interface {
	// Newest is the position of a client that was sent everything on a side. It does not change while the cache is
	// held, except on the new side when the group begins to watch more names there.
	Newest(onNew bool) Position
	// NewsSince returns what is new, on a side, to a client that was sent everything up to a position. The result may
	// be kept for as long as the cache is held.
	NewsSince(at Position, onNew bool) *News
	// SentAt returns a name's entry on a side, and the mark of the resource that a client holds of the name if the
	// client was sent everything up to a position; 0 for none. changed reports that the side may have something else.
	SentAt(i uint32, at Position, onNew bool) (e *cache.Entry, mark uint64, changed bool)
	// ChangedAt returns the number of a name's last change on a side.
	ChangedAt(i uint32, onNew bool) uint64
	// ChangesSince returns the measured changes of a side after number seq.
	ChangesSince(seq uint64, onNew bool) *propagation.List
}

// groupTotals sums up all names except some, as a client holds them that was sent everything up to a position. The
// cache is held.
type groupTotals interface {
	// Held returns how many have resources, and the sum of their digests.
	Held(at Position, but NameBits) (n int, sum uint64)
	// Origin is the version of the origin that all of them have, nil if there is no such version.
	Origin(at Position, but NameBits) *cache.OriginVersion
}

// Position is the change up to which a client was sent everything from a group. The zero value is a client that was
// sent nothing.
type Position struct {
	Seq uint64
	New bool // on the new side of a rollout
}

// Member is a client in a group.
type Member struct {
	Host  Host
	Index int32 // set by the group
	OnNew bool  // it is on the new side of a rollout; set by the group
	// Since is the number of the newest change when the client came to the side. The group sets it.
	Since uint64
	// GaveUp are the names from which the client has unsubscribed since it came.
	GaveUp NameBits
}

// NameBits is a set of names of a list, by their places; nil is the empty set.
type NameBits []uint64

// Has reports whether the name with that place is in the set.
func (b NameBits) Has(i uint32) bool { return b != nil && b[i/64]&(1<<(i%64)) != 0 }

func (b *NameBits) set(i uint32, of int) {
	if *b == nil {
		*b = make(NameBits, (of+63)/64)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

// News is what is new to a client that was sent everything up to a change.
type News struct {
	Bytes    mem.SliceBuffer // of all resources, if they are in one piece
	From, To Position
	Odd      []uint32
	Names    []uint32
	States   []*cache.State // of Names
	Parts    mem.BufferSlice
	Size     int
	Sent     NameSample
	// HoldsSecret: one of the resources has a secret.
	HoldsSecret bool
	// Changes are the measured changes, unless From is 0: see Member.Since.
	Changes *propagation.List
}

// addNews adds what is sent to all clients of a group that were sent the same before. The response must be empty.
func (r *Response) addNews(n *News) {
	if len(n.Names) == 0 {
		return
	}
	r.resources = n.Parts[:len(n.Parts):len(n.Parts)] // the capacity is cut, so that appending copies
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
