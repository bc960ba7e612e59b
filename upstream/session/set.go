package session

import (
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// membersByGlob are the members of the wildcard by the globs of their directories. The zero value is
// not in use, see inWildcard.
type membersByGlob struct {
	byGlob map[string]*cache.Resources
}

// put adds a member, or removes it if r is nil.
func (m *membersByGlob) put(key string, r *cache.Resource) {
	if m.byGlob == nil {
		return
	}
	glob := directoryOf(key)
	members := m.byGlob[glob]
	switch {
	case glob == "":
	case r == nil:
		if members.Delete(key); members.Len() == 0 {
			delete(m.byGlob, glob)
		}
	case members == nil:
		members = &cache.Resources{}
		m.byGlob[glob] = members
		fallthrough
	default:
		members.Put(key, r)
	}
}

// set is the state of a wildcard or a glob, over whichever stream it came.
type set struct {
	subscription
	// members are the members by the keys of their entries. It is nil as
	// long as there is no answer for the set.
	members *cache.Resources
	// refused are the errors of names that are no members, as the control plane sent them
	// for the set.
	refused map[string]*cache.Error
	// origin is the version of the members, nil if they differ from those of the control plane's
	// version.
	origin *cache.OriginVersion
	// expired are members that were not renewed in time. If the control plane sends a heartbeat
	// for one, the set is requested once more.
	expired map[string]struct{}

	// guessed: its members are those that the wildcard and names have, as the control plane
	// did not answer. See settleHeld.
	guessed bool
	// hidden: there was a bad resource without a known name, which may be a member,
	// and no good response since.
	hidden bool
	// silent: nothing came for the recalled wildcard, or for its member doubted, so that it must be requested on another
	// stream. It was pressed if nothing came at all, which happens once. See recall.go and forgetful.go.
	silent, pressed bool
	// doubted is the member that the next stream lists without its version, to see whether the control plane still has it.
	// See forgetful.go.
	doubted string
	doubts  int // how many members are in doubt with it
	// incomplete: more of its first answer may follow. See grace.go.
	incomplete bool

	// Of the present stream:

	// resumed: the set was known before the stream, which resumes with its members.
	// stated: in SotW, there was a full response.
	resumed, stated bool
	// unsaid, if not nil, are the members that were listed and have not come, of a control plane that has not read the
	// list. See forgetful.go.
	unsaid map[string]struct{}
	// renewed: what has come of the list came with the same content and other versions, so the rest may be held.
	renewed bool
	// invited are the members that were listed without their versions, so that they come again.
	invited map[string]struct{}
	// came are the first members that came in the first answers of the stream, at most maxCame.
	came map[string]struct{}
	// latest is when the first answer counts as complete in any case, zero before a response.
	latest   time.Time
	lastPart time.Time // when the last part of it came, zero before a response
	// large: a part of it was large. overtaken: a later request was answered. See grace.go.
	large, overtaken bool
	asked            time.Time // when the set was last requested
	first            firstAnswer
	// listed are resources that the control plane knows to be held while the set has no answer: they
	// were in initial_resource_versions, or came for another set or for a name.
	// The control plane does not send them again for this set, so they count as members.
	listed map[string]*cache.Resource
	// recalled: some of listed were recalled, see recall.go.
	recalled bool

	// byGlob, of the wildcard, are the members by the globs of their directories, see inWildcard.
	byGlob membersByGlob
}

// maxCame bounds set.came. Beyond it, the removal of a member that has just come counts as one of a
// member from before the stream.
const maxCame = 1000

func (c *set) isWildcard() bool { return c.name == cache.Wildcard }

// list notes that a control plane need not send a resource again for the set.
func (c *set) list(key string, r *cache.Resource) {
	if c.listed == nil {
		c.listed = map[string]*cache.Resource{}
	}
	c.listed[key] = r
}

// note keeps the error of a name of the set, for clients that subscribe later.
func (c *set) note(key string, change cache.Change) {
	if change.Err == nil || change.Gone || change.Resource != nil || c.members.Get(key) != nil {
		delete(c.refused, key)
		return
	}
	if c.refused == nil {
		c.refused = map[string]*cache.Error{}
	}
	c.refused[key] = change.Err
}

// partial reports whether members may be missing that exist.
func (c *set) partial() bool { return c.guessed || c.hidden }

// noteHidden sets hidden after a response. While the first answer is settling, a good part of it
// does not make up for a bad resource in an earlier part.
func (c *set) noteHidden(p *part, v *accepted, sotw, settling bool) {
	switch {
	case v.hidden:
		c.hidden = true
	case p.full, !sotw && !settling && !v.onlyBeats():
		c.hidden = false
	}
}

// replace replaces all members.
func (c *set) replace(members *cache.Resources) { c.members, c.byGlob = members, membersByGlob{} }

// put adds a member, or removes it if r is nil.
func (c *set) put(key string, r *cache.Resource) {
	c.byGlob.put(key, r)
	if r == nil {
		c.members.Delete(key)
		return
	}
	if !c.answered { // more may follow: see settle
		c.members.Grow()
	}
	c.members.Put(key, r)
	delete(c.expired, key)
}

// restate returns the full set: its members, and the errors of other names.
func (c *set) restate() cache.SetUpdate {
	return c.restateOf(c.name, c.members, func(string) bool { return true })
}

// restateOf returns the full state of a set that is a part of c: the members, and the errors of those
// names for which of returns true.
func (c *set) restateOf(name string, members *cache.Resources, of func(key string) bool) cache.SetUpdate {
	u := cache.SetUpdate{Name: name, Extent: cache.Whole, Origin: c.origin, Partial: c.partial(), Answer: cache.FirstAnswer}
	if c.incomplete {
		u.Extent = cache.Begins
	}
	u.Changes = make([]cache.Change, 0, members.Len())
	for key, r := range members.All() {
		u.Changes = append(u.Changes, cache.Change{Name: key, Resource: r})
		yield(len(u.Changes), yieldEvery)
	}
	for key, err := range c.refused {
		if of(key) {
			u.Changes = append(u.Changes, cache.Change{Name: key, Err: err})
		}
	}
	compared := 0
	slices.SortFunc(u.Changes, func(a, b cache.Change) int {
		compared++
		yield(compared, yieldEveryComparison)
		return strings.Compare(a.Name, b.Name)
	})
	return u
}

// part is the part of a response that concerns one set.
type part struct {
	set *set
	// held are the members before the response.
	held    *cache.Resources
	changes []cache.Change
	begins  bool // nothing was known of the set
	full    bool // members that are not in the response are gone
	bad     bool // there was a resource that cannot be stored
	// grown says that there was a name that an incomplete set did not have.
	grown bool
	// certain says that a resource of the response was sent because of the set. A resource that is
	// also requested by name may have been sent because of that.
	certain bool
}
