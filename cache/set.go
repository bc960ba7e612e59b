package cache

import "slices"

// Set is a topic of many resources: all that a wildcard gives, or a glob
// collection.
//
// Its members are kept in the order of their last change, and a watcher keeps
// one position in that order. So an unchanged member costs nothing when another
// changes, and nothing is stored per member and watcher.
type Set struct {
	topic

	// Guarded by topic.mu.
	status   Status
	err      *Error
	partial  bool // see SetUpdate.Partial
	first    *firstAnswer
	members  members // removed ones too, see sweep
	notes    notes   // what else is new
	present  int     // members that have not been removed
	seq      uint64  // of the newest change, or of the newest note
	removals []removal
	sweepAt  int // the number of graves at which to sweep
	tombs    tombstones
	sum      uint64 // over the members that are present, see digest
	ttlSum   uint64 // over those of them that have a TTL
	// origin is the version of the origin that this state is of, nil if no single one is
	// known. stated is what that was when the set was told last, and inexact says that
	// there have been several states of it.
	origin  *OriginVersion
	stated  string
	inexact bool
	// bodies are those of this state that somebody asked for.
	bodies   map[Form]*Body
	extended extended
	// withTTL, withheld and redirects count the members that have a TTL, those that
	// are not for newcomers (Resource.DoNotCache), and those that are redirects.
	withTTL, withheld, redirects int
	// was has, by their keys, what members that are redirects were before.
	previousOf map[string]previous

	// planned: the update that is being stored has a plan for the set. It belongs to who
	// stores that.
	planned bool
}

// extended is the newest state that FullWithRemoved built, and for which watchers: those
// that stand where the first one stood.
type extended struct {
	state      uint64 // Set.seq
	seq, ahead uint64 // of the watcher
	between    []uint64
	form       Form
	full       FullState
}

// SetWatch is a watcher's place at a set and its position in the order of
// changes, to be embedded in the watcher in the place of a [Watch].
type SetWatch struct {
	Watch
	// Guarded by topic.mu.
	seq uint64 // of the newest change that the watcher has taken
	// ahead is seq, or more: then the watcher has taken everything up to it but
	// removals (see FullWithRemoved), or is to take everything up to it again (see
	// Rewind).
	seenUpTo uint64
	// between are the positions of earlier states with removed members in them,
	// as far as they alone say that the watcher knows one of those.
	between []uint64
	// begin is seq as it was before the first of the calls of Since that have not
	// told everything yet; within says that there was one.
	batchStart uint64
	inBatch    bool
	// noted is the newest note that the watcher has taken.
	noteSeq uint64
	// Spell, if not nil, is what the watcher calls a member, by the name that the
	// origin gave it: full states for it have these names. It is set by who begins
	// the watch, before it reads anything.
	Spell func(name string) string
	// EachArrival yields a member that is not for new watchers (Resource.DoNotCache) each time
	// that it comes, because the watcher has watchers of its own. It is set as Spell is.
	EachArrival bool
	// joined is the newest change when the watch began: what is not for newcomers
	// is theirs only if it has come since. It is 0 once nothing is kept from the watcher.
	// passed is the newest change at the first of the calls that begin is of.
	began, batchEnd uint64
}

// News is what is new about a member.
type News uint8

// What can be new about a member.
const (
	// ErrorOnly: only an error is new.
	ErrorOnly News = iota
	// Changed: it has another content, or is new.
	Changed
	// Removed: it is gone.
	Removed
	// TTLRenewed: its time to live has begun anew. xDS: "TTL".
	TTLRenewed
	// TTLChanged: it came to have a time to live, or to have none. Who knows of
	// that must be told all of the resource.
	TTLChanged
)

// Member is what a watcher is told of a member of a set.
type Member struct {
	// Name is what the origin calls it.
	Name string
	News News
	// Resource is what it is; what it was, if it was Removed; nil if there is
	// nothing but Err.
	Resource *Resource
	// Err is why its newest state could not be had, if that is new.
	Err *Error
	// Previous is the resource before it became a redirect, until DropPrevious.
	Previous *Resource
}

func (w *SetWatch) positions() []uint64 { return append(w.between, w.seq, w.seenUpTo) }

func (w *SetWatch) begin(seq uint64) { w.began = seq }

// knew says whether a watcher of full states was told of a removed member before
// it was removed, and not of its removal.
func (w *SetWatch) knew(m member) bool {
	had := func(position uint64) bool { return m.added <= position && m.seq > position }
	return had(w.seq) || had(w.seenUpTo) || slices.ContainsFunc(w.between, had)
}

// minSweep is how many removals a set remembers without looking whether anybody
// needs them.
const minSweep = 128

// isEmpty reports whether the set has no members.
func (s *Set) isEmpty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present == 0
}

func newSet(of *scopeTopics, k Key, t Tombstones) *Set {
	s := &Set{topic: topic{scope: of, key: k}, sweepAt: minSweep}
	if k.Name != Wildcard {
		s.tombs.bounds = t
	}
	return s
}

// Key returns what the set is kept under.
func (s *Set) Key() Key { return s.key }

// join notes that a watcher comes, and says whether there is something that is
// not for newcomers.
func (s *Set) begin(w SetWatcher) (withheld bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.begin(s.seq)
	return s.withheld > 0
}

// Status returns the set's status, and the error if it is Failed. A set is
// Present once its members are known, also if there are none.
func (s *Set) Status() (Status, *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status, s.err
}

// HasGaps reports whether the set is Present and incomplete: it is Partial, or a name is not a
// member because of an error of that kind.
func (s *Set) HasGaps(kind func(*Error) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.partial {
		return true
	}
	for key, n := range s.notes.byKey {
		if m := s.members.get(key); n.err != nil && !m.present() && kind(n.err) {
			return true
		}
	}
	return false
}

// Partial says that a member that is missing may exist nevertheless.
func (s *Set) Partial() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.partial
}

// Origin returns the version of the origin that the set's state is of, nil if no single one
// is known.
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

// Member returns the member that is kept under that name (as Key.Name is an
// entry's), nil if there is none.
func (s *Set) Member(key string) *Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.members.get(key); m.present() {
		return m.resource
	}
	return nil
}

// MemberFor is Member for w's watcher: nil also if the member is withheld from it.
func (s *Set) MemberFor(w *SetWatch, key string) *Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.members.get(key); m.present() && !s.withheldFrom(w, m) {
		return m.resource
	}
	return nil
}

// Failed says that the name is no member only because it could not be had.
func (s *Set) Failed(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, n := s.members.get(key), s.notes.byKey[key]
	return n != nil && n.err != nil && !m.present()
}

// Since calls yield for each member that has changed since w's position, in the
// order of the changes, and then for those of which something else is new. When
// yield returns false, that member is not taken: the next call begins with it.
// Since reports whether w has now taken everything. yield is called with the set
// locked, so it must be short and must not call the cache.
func (s *Set) Since(w *SetWatch, yield func(Member) bool) (all bool) {
	return s.SinceInChunks(w, nil, yield)
}

// tellOf returns what a note tells w's watcher, who has the content of members
// that had not changed since begin.
func (s *Set) memberOfNote(w *SetWatch, n *note, begin uint64) (t Member, tell bool) {
	t = Member{Name: n.key}
	if n.failed > w.noteSeq {
		t.Err = n.err
	}
	m := s.members.get(n.key)
	if !m.present() {
		return t, t.Err != nil
	}
	t.Name, t.Resource = m.resource.Name(), m.resource
	switch {
	case n.arrival > w.noteSeq && s.isNewArrival(w, m, n, begin):
		t.News = Changed
	case m.seq > begin || s.withheldFrom(w, m):
		// It was told as a whole, or is not.
	case n.ttlChange > w.noteSeq:
		t.News = TTLChanged
	case n.heartbeat > w.noteSeq:
		t.News = TTLRenewed
	}
	return t, t.News != ErrorOnly || t.Err != nil
}

// anew says that the coming of an unchanged member is news to w's watcher: the member was
// kept from it, or it has others to tell.
func (s *Set) isNewArrival(w *SetWatch, m member, n *note, begin uint64) bool {
	if m.seq <= begin && w.EachArrival {
		return true
	}
	return m.seq <= w.began && n.arrival > w.began && (m.seq <= begin || n.arrival > w.batchEnd)
}

// keeps says that some member is kept from w's watcher.
func (s *Set) withholds(w *SetWatch) bool {
	if s.withheld == 0 || w.began == 0 {
		return false
	}
	for m := range s.members.all() {
		if m.seq > w.began {
			break
		}
		if !m.removed && s.withheldFrom(w, m) {
			return true
		}
	}
	return false
}

// Withholds reports whether a member is withheld from w's watcher: the watcher came later, and
// the member is not to be cached (Resource.DoNotCache). It is withheld until it comes again.
func (s *Set) Withholds(w *SetWatch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.withholds(w)
}

// kept says that a member is kept from w's watcher, who came after it.
func (s *Set) withheldFrom(w *SetWatch, m member) bool { return s.withheldAt(w, m, s.seq) }

// keptUntil is kept as it was when that was the newest change.
func (s *Set) withheldAt(w *SetWatch, m member, seq uint64) bool {
	if !m.resource.doNotCache || m.seq > w.began {
		return false
	}
	n := s.notes.byKey[s.members.key(m)]
	return n == nil || n.arrival <= w.began || n.arrival > seq
}

// Rewind makes Since yield every member and every error to w's watcher again, and every removal
// of a member that the watcher knows.
func (s *Set) Rewind(w *SetWatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.seq, w.noteSeq, w.inBatch = 0, 0, false
}

// Pending reports what w's watcher of full states has not received yet: new or changed
// members, removals, and heartbeats. f is its form.
func (s *Set) Pending(w *SetWatch, f Form) (changes, removals, beats bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members.after(w.seq) {
		if changes && removals {
			break
		}
		if m.removed {
			removals = removals || w.knew(m)
		} else {
			changes = changes || m.seq > w.seenUpTo && !s.withheldFrom(w, m)
		}
	}
	for n := range s.notes.after(w.noteSeq) {
		changes = changes || n.err != nil && n.failed > w.noteSeq || f&WithTTL != 0 && n.ttlChange > w.noteSeq
		changes = changes || s.arrivedAgain(w, n)
		beats = beats || f&WithTTL != 0 && n.heartbeat > w.noteSeq
	}
	if !changes && !beats {
		w.noteSeq = s.seq
	}
	return changes, removals, beats
}

// given says that a member which was kept from w's watcher has come anew since that was
// told last.
func (s *Set) arrivedAgain(w *SetWatch, n *note) bool {
	if n.arrival <= max(w.began, w.noteSeq) {
		return false
	}
	m := s.members.get(n.key)
	return m.present() && m.seq <= w.began
}

// FullState is the whole state of a set, for SotW.
type FullState struct {
	// Version is a hash over the members, whatever their versions.
	Version string
	// Origin is the version of the origin that all of the state is of, nil if no single
	// one is known. Exact says that it stands for this state alone, as far as can be seen.
	Origin *OriginVersion
	Exact  bool
	// Resources is a DiscoveryResponse with nothing but the set's resources.
	Resources *Body
	// Len is the number of resources.
	Len int
	// Hash is the same for the same names and contents, whatever the version.
	Hash uint64
}

// Full returns the set's state as a whole in a form, and moves w past it. It is
// built once per state and form, and shared by all. changed is called for each
// member that is new or changed to the watcher, and for each that has an error, and
// look once, with what says what is in the state under a name (as Key.Name is an
// entry's); both as yield is in Since. Members are left out for whose key
// except, if it is not nil, says so; it is called for those only that would be in.
func (s *Set) Full(w *SetWatch, f Form, except func(key string) bool, changed func(Member), look func(has func(key string) *Resource)) FullState {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes(w, changed)
	look(func(key string) *Resource {
		if m := s.members.get(key); m.present() && !s.withheldFrom(w, m) {
			return m.resource
		}
		return nil
	})
	w.seq, w.seenUpTo, w.between, w.noteSeq = s.seq, s.seq, nil, s.seq
	keeps := s.withholds(w)
	if !keeps {
		w.began = 0
	}
	if except != nil || w.Spell != nil || keeps {
		full := s.encodeIf(f, w.Spell, func(m member) bool {
			return !m.removed && !s.withheldFrom(w, m) && (except == nil || !except(s.members.key(m)))
		})
		if !keeps {
			full.Origin = s.origin
		}
		return full
	}
	if s.withTTL == 0 {
		f &^= WithTTL | Heartbeat
	}
	body := s.bodies[f]
	if body == nil {
		body = s.encodeIf(f, nil, func(m member) bool { return !m.removed }).Resources
		if s.bodies == nil {
			s.bodies = map[Form]*Body{}
		}
		s.bodies[f] = body
	}
	hash := s.sum
	if f&WithTTL != 0 {
		hash += 3 * s.ttlSum
	}
	full := FullState{Version: formatHash(s.sum), Resources: body, Len: s.present, Hash: hash}
	full.Origin, full.Exact = s.origin, !s.inexact
	return full
}

// FullWithRemoved is Full, but still has the removed members that the watcher knows, as they
// were last. The removals stay pending.
func (s *Set) FullWithRemoved(w *SetWatch, f Form, except func(key string) bool, changed func(Member), look func(has func(key string) *Resource)) FullState {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes(w, changed)
	look(func(key string) *Resource {
		if m := s.members.get(key); m.resource != nil && (!m.removed && !s.withheldFrom(w, m) || m.removed && w.knew(m)) {
			return m.resource
		}
		return nil
	})
	if e := &s.extended; except != nil || w.Spell != nil || e.full.Resources == nil || e.state != s.seq || e.seq != w.seq || e.ahead != w.seenUpTo || e.form != f || !slices.Equal(e.between, w.between) {
		*e = extended{state: s.seq, seq: w.seq, ahead: w.seenUpTo, between: w.between, form: f}
		e.full = s.encodeIf(f, w.Spell, func(m member) bool {
			if m.removed && !w.knew(m) || !m.removed && s.withheldFrom(w, m) {
				return false
			}
			return except == nil || !except(s.members.key(m))
		})
	}
	full := s.extended.full
	if except != nil || w.Spell != nil {
		s.extended = extended{} // that is for nobody else
	}
	w.between = s.between(w)
	w.seenUpTo, w.noteSeq = s.seq, s.seq
	return full
}

// between returns what w.between has to be once ahead has moved on: for each
// removed member that the watcher knows, the position of the newest state that had
// it while it was there.
func (s *Set) between(w *SetWatch) []uint64 {
	var between []uint64
	for m := range s.members.after(w.seq) {
		if !m.removed || !w.knew(m) {
			continue
		}
		newest := w.seq
		for _, position := range w.positions() {
			if position < m.seq {
				newest = max(newest, position)
			}
		}
		if newest != w.seq {
			between = append(between, newest)
		}
	}
	slices.Sort(between)
	return slices.Compact(between)
}

// changes calls changed for each member that is new or changed to the watcher, and
// for all that have an error.
func (s *Set) changes(w *SetWatch, changed func(Member)) {
	for m := range s.members.after(w.seq) {
		if !m.removed && m.seq > w.seenUpTo && !s.withheldFrom(w, m) {
			changed(Member{Name: m.resource.Name(), News: Changed, Resource: m.resource})
		}
	}
	// A resource that is told again without its error would end that.
	for n := range s.notes.after(0) {
		if s.arrivedAgain(w, n) {
			r := s.members.get(n.key).resource
			changed(Member{Name: r.Name(), News: Changed, Resource: r})
		}
		if n.err != nil {
			changed(Member{Name: n.key, Err: n.err})
		}
	}
}

// encodeIf makes a state of the members that keep wants, under a version that is
// a hash over them. spell is as in SetWatch.
func (s *Set) encodeIf(f Form, spell func(string) string, keep func(member) bool) FullState {
	var full FullState
	resources := make([]*Resource, 0, s.members.len())
	var ttlSum uint64
	for m := range s.members.all() {
		if keep(m) {
			resources = append(resources, m.resource)
			full.Hash += digest(m.resource)
			if f&WithTTL != 0 && m.resource.ttl > 0 {
				ttlSum += digest(m.resource)
			}
		}
	}
	full.Len, full.Version = len(resources), formatHash(full.Hash)
	full.Resources = &Body{form: f, spell: spell, resources: resources}
	full.Hash += 3 * ttlSum
	return full
}
