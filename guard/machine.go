package guard

import (
	"cmp"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// Options are the guard's options for an authority.
type Options struct {
	// Ratio and Least are the smallest part of a set, and the smallest number of members, that must go at once for
	// the guard to hold them. The last members of a set are always held.
	Ratio float64
	Least int
	// Always guards every answer, not only first ones.
	Always bool
	// Hold is how long members are held.
	Hold time.Duration
}

// firstAnswers is how long the removals of first answers count together: a control plane may send them in several
// responses.
const firstAnswers = 10 * time.Second

// most bounds the held members, as a multiple of the members that the source had: a source with other members after
// each reconnect must not fill the memory.
const most = 4

// mostBroken, after another Hold, is how long members that are due to go wait for a source whose streams break again and
// again soon after it has answered.
const mostBroken = time.Minute

// machine decides which members of which sets are held. content: what is held are earlier contents.
type machine struct {
	sets    map[cache.Key]*set
	content bool
}

// set is a set with members that are held, or were removed recently.
type set struct {
	// held has the deviations, by the keys of the members. since is when the first member was held, next when the first
	// one goes.
	held        map[string]deviation
	since, next time.Time
	// largest is the largest number of members that the source has had since then.
	largest int
	// expire: some of the held members may have a TTL.
	expire bool
	// origin is the source's version of its own state.
	origin *cache.OriginVersion
	// Until `until`, further removals of first answers count together with earlier ones: went of had members have
	// gone.
	had, went int
	until     time.Time
	// stored are the members from before the relay was started that are not in the first answer yet, while that
	// answer is incomplete.
	stored map[string]*cache.Resource
}

// deviation is a member that is held although the source says something else. It goes at a given time, but no later than
// the end of its TTL, if it has one, and no later than another member takes one of its claims.
type deviation struct {
	at, ttl time.Time
	claims  []uint64
	said    *said // nil if the source says that the member is gone
}

// first is the earlier of the two times.
func (e deviation) first() time.Time {
	if e.ttl.IsZero() || e.at.Before(e.ttl) {
		return e.at
	}
	return e.ttl
}

// decision is the machine's decision on one update of a set.
type decision struct {
	update cache.SetUpdate
	// held is the number of members that are held from now on, of the set's number of members. restored is the number
	// of held members that the source has sent again. gone is the number of held members that must not stay: their
	// TTL has ended, or no client may have them. replaced is the number of held members whose place others have taken.
	held, restored, gone, replaced, of int
	// fresh are the members that are held from now on, and passed those that go although they count.
	fresh, passed []removal
}

// removal is a member that an update would remove. err and answer are those of its change, if it has one.
type removal struct {
	key      string
	resource *cache.Resource
	err      *cache.Error
	answer   cache.Answer
}

// removalsBy returns the members of a set that an update would remove.
func removalsBy(u *cache.SetUpdate, before *cache.SetBefore) (gone []removal) {
	for i := range u.Changes {
		c := &u.Changes[i]
		if old := before.Member(i); old != nil && c.Removes() {
			gone = append(gone, removal{c.Name, old, c.Err, c.Answer})
		}
	}
	return gone
}

// concerns reports whether an update of a set needs a decision. Most updates do not.
func (m *machine) concerns(key cache.Key, u *cache.SetUpdate, o *Options) bool {
	if u.Err != nil {
		return false
	}
	s := m.sets[key]
	if o.guards(u.Answer) {
		return true
	}
	if s != nil && len(s.held) == 0 && len(s.stored) == 0 && u.Answer == cache.LaterAnswer {
		delete(m.sets, key)
		return false
	}
	return s != nil
}

func (o *Options) guards(a cache.Answer) bool {
	return a == cache.FirstAnswer || o.Always && a == cache.LaterAnswer
}

// decide decides on an update of a set. before is what the set has before. stored are the store's members of a
// set that has no answer yet; decide retains the map. members iterates over the members that the set has before.
func (m *machine) decide(now time.Time, key cache.Key, u *cache.SetUpdate, before *cache.SetBefore, stored map[string]*cache.Resource, members members, o *Options) decision {
	s := m.sets[key]
	d := decision{update: *u, of: before.Len}
	inCache := removalsBy(u, before)
	if s == nil && before.Present && len(inCache) == 0 {
		return d
	}
	if s == nil || !before.Present {
		if s != nil {
			d.gone = len(s.held) // the members ended with an earlier topic
		}
		s = &set{held: map[string]deviation{}}
		if !before.Present {
			s.stored, s.had = stored, len(stored)
		}
	}
	had := before.Len
	if u.Of > 0 {
		had = min(u.Of, had)
	}
	switch {
	case len(s.stored) > 0:
		s.had = max(s.had, had)
	case !now.Before(s.until):
		s.had, s.went = had, 0
	}
	d.of = s.had
	s.largest = max(s.largest, max(d.of, before.Len)-len(s.held))
	d.restored = s.takeNamed(u)
	gone := s.gone(u, inCache)
	var fresh []removal
	for _, g := range gone {
		_, held := s.held[g.key]
		switch ends := u.Answer == cache.NoAnswer || isDenied(g.err); {
		case held && ends:
			delete(s.held, g.key)
			d.gone++
		case !held && !ends && o.guards(cmp.Or(g.answer, u.Answer)):
			fresh = append(fresh, g)
		}
	}
	fresh, replaced := s.replace(key.TypeURL, u, fresh, members)
	d.replaced = len(replaced)
	switch total := len(s.held) + s.went + len(fresh); {
	case len(fresh) == 0, len(s.held)+len(fresh) > most*s.largest:
	case s.empties(u, before.Len, inCache), u.Of > 0 && len(fresh) >= u.Of, total >= o.Least && float64(total) >= o.Ratio*float64(d.of):
		d.held, d.fresh = len(fresh), fresh
		for _, g := range fresh {
			s.keepFor(now, g.key, g.resource, o)
		}
	default:
		s.went += len(fresh)
		s.until = now.Add(firstAnswers)
		d.passed = fresh
	}
	if len(s.held) > 0 {
		d.update = s.keep(u, gone[len(inCache):])
	}
	d.update.Changes = withRemovals(d.update.Changes, replaced)
	if len(s.held) == 0 && len(s.stored) == 0 && !now.Before(s.until) {
		delete(m.sets, key)
	} else {
		m.sets[key] = s
	}
	return d
}

// isDenied reports whether a member goes because no client may have it any longer. gRFC A88.
func isDenied(err *cache.Error) bool {
	return err != nil && (err.Code == codes.PermissionDenied || err.Code == codes.Unauthenticated)
}

// takeNamed records the members that the source has, or has again, and returns how many of them were held.
func (s *set) takeNamed(u *cache.SetUpdate) (restored int) {
	if len(s.held) == 0 && len(s.stored) == 0 {
		return 0
	}
	for i := range u.Changes {
		c := &u.Changes[i]
		if c.Removes() {
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

// gone returns the members that an update would remove from the set, which are given, or from the stored members.
func (s *set) gone(u *cache.SetUpdate, gone []removal) []removal {
	if len(s.stored) == 0 {
		return gone
	}
	for _, g := range gone {
		delete(s.stored, g.key)
	}
	for i := range u.Changes {
		if c := &u.Changes[i]; c.Removes() && s.stored[c.Name] != nil {
			gone = append(gone, removal{c.Name, s.stored[c.Name], c.Err, c.Answer})
			delete(s.stored, c.Name)
		}
	}
	return gone
}

// empties reports whether the source has none left of the set's members, of which some are gone.
func (s *set) empties(u *cache.SetUpdate, members int, gone []removal) bool {
	for i := range u.Changes {
		if u.Changes[i].Resource != nil {
			return false
		}
	}
	left := members - len(gone)
	listed := map[string]bool{}
	for _, g := range gone {
		listed[g.key] = true
	}
	for name := range s.held {
		if !listed[name] {
			left--
		}
	}
	return left <= 0
}

// keepFor holds a member from now on.
func (s *set) keepFor(now time.Time, key string, r *cache.Resource, o *Options) {
	if len(s.held) == 0 {
		s.since, s.next, s.expire = now, time.Time{}, false
	}
	e := deviation{at: now.Add(o.Hold)}
	if r != nil && r.TTL() > 0 {
		e.ttl = now.Add(r.TTL()) // no response renews the TTL. xDS: "TTL"
		s.expire = true
	}
	if r != nil {
		e.claims = r.Claims()
	}
	s.held[strings.Clone(key)] = e
	s.wake(e.first())
}

// wake records that a member goes at a given time.
func (s *set) wake(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// keep returns an update that leaves the held members in the set. stored are members that are gone, and that the set does
// not have: it gets those that are held.
func (s *set) keep(u *cache.SetUpdate, stored []removal) cache.SetUpdate {
	kept := *u
	kept.Changes = make([]cache.Change, 0, len(u.Changes)+len(stored))
	for i := range u.Changes {
		if _, held := s.held[u.Changes[i].Name]; !held {
			kept.Changes = append(kept.Changes, u.Changes[i])
		}
	}
	for _, g := range stored {
		if _, held := s.held[g.key]; held {
			kept.Changes = append(kept.Changes, cache.Change{Name: g.key, Resource: g.resource})
		}
	}
	if u.Origin != nil || len(u.Changes) > 0 {
		s.origin = u.Origin
	}
	kept.Origin = noVersion()
	return kept
}

// noVersion is the version of a state that differs from all of the source's versions.
func noVersion() *cache.OriginVersion { return cache.NewOriginVersion(nil, "") }

// release has the deviations that end in a set, by the keys of the members, and the version that the set has afterwards.
type release struct {
	ended  map[string]deviation
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

// overdue is a set with members that are due to go: since when it has held members, and when the first of them was due.
type overdue struct{ since, at time.Time }

// overdue returns the sets with members that are due to go.
func (m *machine) overdue(now time.Time) map[cache.Key]overdue {
	var all map[cache.Key]overdue
	for key, s := range m.sets {
		if len(s.held) > 0 && !s.next.After(now) {
			if all == nil {
				all = map[cache.Key]overdue{}
			}
			first := now
			for _, e := range s.held {
				if e.at.Before(first) {
					first = e.at
				}
			}
			all[key] = overdue{s.since, first}
		}
	}
	return all
}

// due returns the members that go now, by set. waits has the times until which sets must wait for an answer from the
// source.
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
		r := release{ended: map[string]deviation{}, origin: noVersion()}
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
			r.ended[name] = e
			delete(s.held, name)
		}
		if len(r.ended) == 0 {
			continue
		}
		if len(s.held) == 0 {
			r.origin = s.origin.Snapshot()
			if len(s.stored) == 0 {
				delete(m.sets, key)
			}
		}
		if all == nil {
			all = map[cache.Key]release{}
		}
		all[key] = r
	}
	return all
}
