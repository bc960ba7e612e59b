package cache

import (
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache/internal/members"
	"github.com/xds-relay/xds-relay/urn"
)

// Set is a topic of many resources: those of a wildcard, or a glob collection.
//
// Its members are in the order of their last change, and a watcher has one position in that
// order. So an unchanged member costs nothing when another changes, and nothing is stored per
// member and watcher.
type Set struct {
	topic

	// Guarded by topic.mu.
	status     Status
	err        *Error
	partial    bool  // see SetUpdate.Partial
	gaps       []Gap // see SetUpdate.Gaps
	stale      bool  // see SetUpdate.Stale
	first      *firstAnswer
	beginning  bool                // first is the answer with which the set began
	unknown    map[string]struct{} // names that exist, but are no members as far as the set, which is behind, knows
	members    members.Members     // removed ones too: see sweep
	notes      notes               // heartbeats and errors
	present    int                 // members that have not been removed
	counted    StateCounts         // the set's part of table.states
	seq        uint64              // of the newest change or note
	removals   []removal
	sweepAt    int // the number of removals at which to sweep
	tombstones members.Tombstones
	sum        uint64 // over the present members: see digest
	ttlSum     uint64 // over the present members that have a TTL
	// origin is the origin's version of this state, nil if there is no single one. stated is
	// its version string at the last update. inexact: several states of the set have had this
	// version.
	origin  *OriginVersion
	stated  string
	inexact bool
	// bodies are the encoded forms of this state that were requested.
	bodies   map[Form]*Body
	extended extended
	// withTTL, withheld and redirects count the members that have a TTL, that are not to be
	// cached (Resource.DoNotCache), and that are redirects.
	withTTL, withheld, redirects int
	spelling                     int // members that spell names
	// previousOf has, by key, the resources of members before they became redirects.
	previousOf map[string]previous

	claims *claims // nil as long as none has changed

	// times are the times of changes: see noteTime.
	times []changeTime

	// refused has the members that a client has refused: see Refuse. renewed: a member has been Renewed.
	refused map[string]Release
	renewed bool

	// planned: the update that is being stored has a plan for the set. Guarded by
	// gate.storing.
	planned bool
}

// Tombstones bound what each glob collection remembers of removed members. The zero value
// remembers none.
type Tombstones struct {
	// TTL is how long a removal is remembered.
	TTL time.Duration
	// Limit is how many are remembered; the oldest are forgotten first.
	Limit int
}

// removal is the removal of a member. It is invalid if the member has come back: see valid.
type removal struct {
	key        string
	added, seq uint64 // as in member
	time       time.Time
}

// minSweep is how many removals a set collects before it first checks which are still needed.
const minSweep = 128

// extended is the newest result of FullWithRemoved, and the position of the watchers for which it
// is valid.
type extended struct {
	state      uint64 // Set.seq
	seq, ahead uint64 // of the watcher
	between    []uint64
	form       Form
	full       FullState
}

// FullState is the whole state of a set, for SotW.
type FullState struct {
	// Version is a hash over the members, whatever their versions.
	Version string
	// Origin is the origin's version of the whole state, nil if there is no single one.
	// Exact: as far as is known, no other state has had this version.
	Origin *OriginVersion
	Exact  bool
	// Resources is a DiscoveryResponse with only the set's resources.
	Resources *Body
	// Len is the number of resources.
	Len int
	// Hash is the same for the same names and contents, whatever the version.
	Hash uint64
}

// firstAnswer is the state of an incomplete first answer: see firstanswer.go.
type firstAnswer struct {
	// missing are the keys of earlier members that have not come yet. They are removed when
	// the answer is complete.
	missing map[string]struct{}
	// removed are the keys that the origin has removed. Clients may have these resources even if
	// the set did not.
	removed map[string]bool
}

// previous is a member's resource before it became a redirect. Clients keep it until the
// redirect's target is known. TP1: "Server redirects".
type previous struct {
	resource *Resource
	seq      uint64 // of its last change
}

func newSet(owner *table, k Key, t Tombstones) *Set {
	s := &Set{topic: topic{table: owner, key: k}, sweepAt: minSweep}
	if k.Name != Wildcard {
		s.tombstones.Bounds = members.Bounds(t)
	}
	s.recount()
	return s
}

// Key returns the set's key.
func (s *Set) Key() Key { return s.key }

// Status returns the set's status, and the error if it is Failed. A set is
// Present once its members are known, even if there are none.
func (s *Set) Status() (Status, *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status, s.err
}

// HasGaps reports whether the set is incomplete: it is Partial, or a name is not a member because of an
// error for which kind returns true.
func (s *Set) HasGaps(kind func(*Error) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.partial {
		return true
	}
	for key, n := range s.notes.byKey {
		if m := s.members.Get(key); n.err != nil && !m.Present() && kind(n.err) {
			return true
		}
	}
	return false
}

// Partial reports whether names that are not members may exist nevertheless.
func (s *Set) Partial() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.partial
}

// MayHave reports whether a name that is not a member may exist nevertheless, because a part of the set could not be
// fetched.
func (s *Set) MayHave(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.partial && (len(s.gaps) == 0 || s.inGap(key, func(Gap) bool { return true }))
}

// MayHaveAny reports whether MayHave is true for any name.
func (s *Set) MayHaveAny() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.partial && len(s.gaps) == 0
}

// inGap reports whether a key is in a gap of a kind.
func (s *Set) inGap(key string, kind func(Gap) bool) bool {
	if len(s.gaps) == 0 {
		return false
	}
	glob, ok := urn.GlobOf(key)
	return ok && slices.ContainsFunc(s.gaps, func(g Gap) bool { return g.Glob == glob && kind(g) })
}

// awaited reports whether more of the first answer for a gap may follow.
func (g Gap) awaited() bool { return g.Awaited }

// Stale reports whether the members are from before the relay was started, and no control plane has
// confirmed them since.
func (s *Set) Stale() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stale
}

// Origin returns the origin's version of the set's state, nil if there is no single one.
func (s *Set) Origin() *OriginVersion {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.origin
}

// Len returns the number of members.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present
}

// Member returns the member with a key (as Key.Name is an entry's), nil if there is none.
func (s *Set) Member(key string) *Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.members.Get(key); m.Present() {
		return m.Resource
	}
	return nil
}

// Failed reports whether a name is not a member because of an error.
func (s *Set) Failed(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, n := s.members.Get(key), s.notes.byKey[key]
	return n != nil && n.err != nil && !m.Present()
}

// Err returns why the newest state of a name could not be fetched, nil if it could. The name need not be a member.
func (s *Set) Err(key string) *Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.notes.byKey[key]; n != nil {
		return n.err
	}
	return nil
}

// Names calls yield for the name of each member. The rules for yield of Since apply.
func (s *Set) Names(yield func(name string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members.All() {
		if !m.Removed {
			yield(m.Resource.Name())
		}
	}
}

// isEmpty reports whether the set has no members.
func (s *Set) isEmpty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present == 0
}
