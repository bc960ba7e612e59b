package cache

import (
	"github.com/xds-relay/xds-relay/internal/propagation"
)

// Answer says to which answer of a source an update belongs: see the package guard.
type Answer uint8

// The answers of a source.
const (
	NoAnswer    Answer = iota // not an answer, for example the end of a TTL; or an answer that was guarded already
	LaterAnswer               // an answer after the first ones
	FirstAnswer               // one of the first answers of a new stream, or of another server
	Guarded                   // of a member of a set: the guard of another set has let the removal pass
)

// Extent says what an update of a set says of the members that it does not name.
type Extent uint8

// The extents of an update.
const (
	Some   Extent = iota // nothing: they stay
	Whole                // the update has all members: they are removed
	Begins               // more of the origin's first answer may follow: they stay until it is complete
	Ends                 // the first answer is complete: those that no part of it has named are removed
)

// WholeIf returns Whole if an update has all members, and otherwise Some.
func WholeIf(whole bool) Extent {
	if whole {
		return Whole
	}
	return Some
}

// Full reports whether an update replaces what earlier updates said of the set.
func (e Extent) Full() bool { return e == Whole || e == Begins }

// Completes reports whether the set is known completely after an update.
func (e Extent) Completes() bool { return e == Whole || e == Ends }

// Change is the new state of one name.
type Change struct {
	// Name is the key of an entry (Key.Name), or of a set's member.
	Name string
	// Resource is nil if the resource does not exist, or could not be fetched.
	Resource *Resource
	// Err, if set, says that the resource could not be fetched: Resource is nil, and the last
	// good one stays. With Gone, the resource does not exist, and Err is the authority's
	// reason.
	Err  *Error
	Gone bool
	// Partial: Resource is made of others, and some of them could not be fetched. What is
	// missing in it may exist nevertheless.
	Partial bool
	// Stale: Resource is from before the relay was started, and no control plane has confirmed it
	// since.
	Stale bool
	// Member, for an entry with a Resource: the source has no answer yet for the set of the name's directory, which may
	// be from an earlier source. If the set has a member of that name, the member gets the same Resource. Otherwise the
	// set awaits the member: see Set.Awaits.
	Member bool
	// Receipt belongs to code that delays the change between the source and the cache. The cache
	// ignores it.
	Receipt *propagation.Receipt
	// Answer says to which answer of the source the change of an entry belongs. For a member of a set,
	// it is only set if it differs from the Answer of the set.
	Answer Answer
	// Origin is the origin's version of this state, nil if there is none. An entry with an
	// error then keeps its version.
	Origin *OriginVersion
}

// SetUpdate is the new state of one set, or its changes.
type SetUpdate struct {
	// Name is the set's key (Key.Name).
	Name    string
	Changes []Change
	// Extent says what becomes of members that Changes does not name.
	Extent Extent
	// Explicit: Changes has all members that are removed, also those that follow from Extent.
	Explicit bool
	// Partial: a part of the set could not be fetched. A missing member may exist
	// nevertheless. It is valid until the set's next update.
	Partial bool
	// Gaps, of a Partial update, are the globs that may have further members. If there are none, a missing member may have
	// any name.
	Gaps []Gap
	// Stale is as in Change, for all members. It is valid until the set's next update.
	Stale bool
	// Answer says to which answer of the source the update belongs.
	Answer Answer
	// Of, for a union, is the number of members of the list that lost members in this update, before
	// it lost them; 0 if that is not known.
	Of int
	// Origin is the origin's version of the set after these changes. If it is nil, the
	// version stays as long as the members do.
	Origin *OriginVersion
	// Err, if set, says that the set could not be fetched. The other fields are then ignored.
	Err *Error
}

// Gap is a glob of which a union does not have all members.
type Gap struct {
	Glob string
	// Awaited: more of the origin's first answer may follow. Otherwise the origin is not available.
	Awaited bool
}

// Update has the changes of one response, of one type in one scope.
type Update struct {
	Scope   Scope
	TypeURL string
	// Changes are for the entries. Names without an entry are ignored.
	Changes []Change
	// Sets are for the sets. Sets that the cache does not have are ignored.
	Sets []SetUpdate
	// Origin is the newest version of the origin. Most of the source's resources have it,
	// also resources that are not in this update.
	Origin *OriginVersion
	// Receipt is the receipt of the response that has just brought the update, nil if no response did.
	Receipt *propagation.Receipt
	// Progress is how far the update has come on its way to clients, nil if that is not measured. Apply sets it.
	Progress *propagation.Progress
	// Server is the address of the control plane that sent the update, empty if none did. It is
	// for the store. The cache ignores it.
	Server string
}

// Removes reports whether a change removes the member of its name.
func (c *Change) Removes() bool { return c.Resource == nil && (c.Err == nil || c.Gone) }

// HasState reports whether a change has a new state of its name, and not only an error.
func (c *Change) HasState() bool { return c.Resource != nil || c.Err == nil || c.Gone }

func (c Change) state() State {
	switch {
	case c.Resource != nil:
		return State{Status: Present, Resource: c.Resource, Err: c.Err, Partial: c.Partial, Origin: c.Origin, Stale: c.Stale, Answer: c.Answer}
	case c.Err != nil && !c.Gone:
		return State{Status: Failed, Err: c.Err, Origin: c.Origin, Answer: c.Answer}
	default:
		return State{Status: Absent, Err: c.Err, Origin: c.Origin, Answer: c.Answer}
	}
}
