package guard

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// Options are how an authority is guarded.
type Options struct {
	// Ratio and Least: so large a part of the members, and at least so many, have to go at once for
	// the guard to hold them. The last ones are always held.
	Ratio float64
	Least int
	// Always guards every answer, and not only first ones.
	Always bool
	// Hold is how long they stay.
	Hold time.Duration
}

// firstAnswers is for how long removals of first answers count together: a control plane may send
// them in several responses.
const firstAnswers = 10 * time.Second

// most is how many times as many members as the source had are held at most: a source that has others
// after each reconnect must not fill the memory.
const most = 4

// machine is which members of which sets are held.
type machine struct {
	sets map[cache.Key]*set
}

// set is a set of which members are held, or were removed just now.
type set struct {
	// held is when each member that is held goes, by its key. since is when the first was held,
	// next when the first goes.
	held        map[string]end
	since, next time.Time
	// largest is how many members the source had at most since then.
	largest int
	// expire: some of them may have a TTL.
	expire bool
	// origin is the source's version of what it has.
	origin *cache.OriginVersion
	// Until `until`, further removals of first answers count with these: went of had members.
	had, went int
	until     time.Time
	// stored are the members of before the relay was started that have not come in the first
	// answer yet, as long as that is not complete.
	stored map[string]*cache.Resource
}

// end is when a member that is held goes: at a time; and when its TTL ends, if it has one, in any case.
type end struct {
	at, ttl time.Time
}

// first is the earlier of the two.
func (e end) first() time.Time {
	if e.ttl.IsZero() || e.at.Before(e.ttl) {
		return e.at
	}
	return e.ttl
}

// decision is what becomes of one update of a set.
type decision struct {
	update cache.SetUpdate
	// held is how many members are held from now on, and of how many the set had. restored is how
	// many are held no longer because the source has them again, and gone how many because they may
	// not stay: a TTL has ended, or nobody may have them.
	held, restored, gone, of int
}

// concerns reports whether an update of a set has to be decided on. It is false for nearly all.
func (m *machine) concerns(key cache.Key, u *cache.SetUpdate, o *Options) bool {
	if u.Err != nil {
		return false
	}
	s := m.sets[key]
	if o.guards(u.Answer) {
		return true
	}
	if s != nil && len(s.held) == 0 && s.stored == nil && u.Answer == cache.LaterAnswer {
		delete(m.sets, key)
		return false
	}
	return s != nil
}

func (o *Options) guards(a cache.Answer) bool {
	return a == cache.FirstAnswer || o.Always && a == cache.LaterAnswer
}

// decide decides on an update of a set. would is what it would remove, and stored are the
// members that the store has of a set that has no answer yet. It keeps stored.
func (m *machine) decide(now time.Time, key cache.Key, u *cache.SetUpdate, would *cache.Removals, stored map[string]*cache.Resource, o *Options) decision {
	s := m.sets[key]
	d := decision{update: *u, of: would.Len}
	if s == nil && would.Present && len(would.Gone) == 0 {
		return d
	}
	if s == nil || !would.Present {
		if s != nil {
			d.gone = len(s.held) // with an earlier topic
		}
		s = &set{held: map[string]end{}}
		if !would.Present && u.Full {
			s.stored, s.had = stored, len(stored)
		}
	}
	had := would.Len
	if u.Of > 0 {
		had = min(u.Of, had)
	}
	switch {
	case s.stored != nil:
		s.had = max(s.had, had)
	case !now.Before(s.until):
		s.had, s.went = had, 0
	}
	d.of = s.had
	s.largest = max(s.largest, max(d.of, would.Len)-len(s.held))
	d.restored = s.takeNamed(u)
	gone := s.gone(u, would)
	var fresh []cache.Removal
	for _, g := range gone {
		_, held := s.held[g.Key]
		switch ends := u.Answer == cache.NoAnswer || isDenied(g.Err); {
		case held && ends:
			delete(s.held, g.Key)
			d.gone++
		case !held && !ends && o.guards(cmp.Or(g.Answer, u.Answer)):
			fresh = append(fresh, g)
		}
	}
	switch total := len(s.held) + s.went + len(fresh); {
	case len(fresh) == 0, len(s.held)+len(fresh) > most*s.largest:
	case s.empties(u, would), u.Of > 0 && len(fresh) >= u.Of, total >= o.Least && float64(total) >= o.Ratio*float64(d.of):
		d.held = len(fresh)
		for _, g := range fresh {
			s.keepFor(now, g, o)
		}
	default:
		s.went += len(fresh)
		s.until = now.Add(firstAnswers)
	}
	if len(s.held) > 0 {
		d.update = s.keep(u, gone)
	}
	if len(s.held) == 0 && s.stored == nil && !now.Before(s.until) {
		delete(m.sets, key)
	} else {
		m.sets[key] = s
	}
	return d
}

// isDenied reports whether a member goes because nobody may have it any more. gRFC A88.
func isDenied(err *cache.Error) bool {
	return err != nil && (err.Code == codes.PermissionDenied || err.Code == codes.Unauthenticated)
}

// removes reports whether a change removes the member of its name.
func removes(c *cache.Change) bool { return c.Resource == nil && (c.Err == nil || c.Gone) }

// takeNamed takes note of what the source has, or has again, and returns how many of the held
// members these are.
func (s *set) takeNamed(u *cache.SetUpdate) (restored int) {
	if len(s.held) == 0 && len(s.stored) == 0 {
		return 0
	}
	for i := range u.Changes {
		c := &u.Changes[i]
		if removes(c) {
			continue
		}
		delete(s.stored, c.Name)
		if _, held := s.held[c.Name]; held {
			delete(s.held, c.Name)
			restored++
		}
	}
	return restored
}

// gone returns what an update would remove: from the set, and of what was stored.
func (s *set) gone(u *cache.SetUpdate, would *cache.Removals) []cache.Removal {
	gone := would.Gone
	if s.stored == nil {
		return gone
	}
	for _, g := range gone {
		delete(s.stored, g.Key)
	}
	for i := range u.Changes {
		if c := &u.Changes[i]; removes(c) && s.stored[c.Name] != nil {
			gone = append(gone, cache.Removal{Key: c.Name, Resource: s.stored[c.Name], Err: c.Err, Answer: c.Answer})
			delete(s.stored, c.Name)
		}
	}
	if u.Complete || u.Full && !u.Incomplete {
		for _, name := range slices.Sorted(maps.Keys(s.stored)) {
			gone = append(gone, cache.Removal{Key: name, Resource: s.stored[name]})
		}
		s.stored = nil
	}
	return gone
}

// empties reports whether the source has no members any more.
func (s *set) empties(u *cache.SetUpdate, would *cache.Removals) bool {
	for i := range u.Changes {
		if u.Changes[i].Resource != nil {
			return false
		}
	}
	left := would.Len - len(would.Gone)
	listed := map[string]bool{}
	for _, g := range would.Gone {
		listed[g.Key] = true
	}
	for name := range s.held {
		if !listed[name] {
			left--
		}
	}
	return left <= 0
}

// keepFor holds a member from now on.
func (s *set) keepFor(now time.Time, g cache.Removal, o *Options) {
	if len(s.held) == 0 {
		s.since, s.next, s.expire = now, time.Time{}, false
	}
	e := end{at: now.Add(o.Hold)}
	if g.Resource != nil && g.Resource.TTL() > 0 {
		e.ttl = now.Add(g.Resource.TTL()) // nobody renews it. xDS: "TTL"
		s.expire = true
	}
	s.held[strings.Clone(g.Key)] = e
	s.wake(e.first())
}

// wake notes that something goes at a time.
func (s *set) wake(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// keep returns an update with which the set keeps what is held.
func (s *set) keep(u *cache.SetUpdate, gone []cache.Removal) cache.SetUpdate {
	kept := *u
	kept.Changes = make([]cache.Change, 0, len(u.Changes)+len(gone))
	for i := range u.Changes {
		if _, held := s.held[u.Changes[i].Name]; !held {
			kept.Changes = append(kept.Changes, u.Changes[i])
		}
	}
	for _, g := range gone {
		if _, held := s.held[g.Key]; held {
			kept.Changes = append(kept.Changes, cache.Change{Name: g.Key, Resource: g.Resource, Held: true})
		}
	}
	if u.Origin != nil || len(u.Changes) > 0 {
		s.origin = u.Origin
	}
	kept.Origin = noVersion()
	return kept
}

// noVersion is the version of what the source does not call by any.
func noVersion() *cache.OriginVersion { return cache.NewOriginVersion(nil, "") }

// release is what goes of a set, and the version that it has then.
type release struct {
	names  []string
	origin *cache.OriginVersion
}

// next returns when the first member goes, zero if none is held.
func (m *machine) next() (next time.Time) {
	for _, s := range m.sets {
		if len(s.held) > 0 && (next.IsZero() || s.next.Before(next)) {
			next = s.next
		}
	}
	return next
}

// overdue returns the sets of which members would go now, and since when they are held.
func (m *machine) overdue(now time.Time) map[cache.Key]time.Time {
	var all map[cache.Key]time.Time
	for key, s := range m.sets {
		if len(s.held) > 0 && !s.next.After(now) {
			if all == nil {
				all = map[cache.Key]time.Time{}
			}
			all[key] = s.since
		}
	}
	return all
}

// due returns which members go now, by their sets. waits has until when sets have to wait for the
// source's word.
func (m *machine) due(now time.Time, waits map[cache.Key]time.Time) map[cache.Key]release {
	var all map[cache.Key]release
	for key, s := range m.sets {
		if len(s.held) == 0 || s.next.After(now) {
			continue
		}
		wait := waits[key]
		if wait.After(now) && !s.expire {
			s.next = wait
			continue
		}
		r := release{origin: noVersion()}
		s.next = time.Time{}
		for name, e := range s.held {
			if wait.After(e.at) {
				e.at = wait
			}
			at := e.first()
			if at.After(now) {
				s.wake(at)
				continue
			}
			r.names = append(r.names, name)
			delete(s.held, name)
		}
		if len(r.names) == 0 {
			continue
		}
		if len(s.held) == 0 {
			r.origin = s.origin.Snapshot()
			if s.stored == nil {
				delete(m.sets, key)
			}
		}
		slices.Sort(r.names)
		if all == nil {
			all = map[cache.Key]release{}
		}
		all[key] = r
	}
	return all
}

// forget forgets a set, and returns how many members were held.
func (m *machine) forget(key cache.Key) (held int) {
	if s := m.sets[key]; s != nil {
		held = len(s.held)
		delete(m.sets, key)
	}
	return held
}
