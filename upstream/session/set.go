package session

import (
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// parts are the members of the wildcard by their directories. The zero value is not
// begun.
type parts struct {
	byGlob map[string]*cache.Resources
}

// put notes a member, or that there is none if r is nil.
func (p *parts) put(key string, r *cache.Resource) {
	if p.byGlob == nil {
		return
	}
	glob := directoryOf(key)
	part := p.byGlob[glob]
	switch {
	case glob == "":
	case r == nil:
		if part.Delete(key); part.Len() == 0 {
			delete(p.byGlob, glob)
		}
	case part == nil:
		part = &cache.Resources{}
		p.byGlob[glob] = part
		fallthrough
	default:
		part.Put(key, r)
	}
}

// set is what is held of a wildcard or a glob, whichever stream it came over.
type set struct {
	subscription
	// members is what the set has given, under the keys of the entries. It is nil as
	// long as there is no answer for the set.
	members *cache.Resources
	// refused is why names that are no members could not be had, as the control plane
	// said of the set.
	refused map[string]*cache.Error
	// origin is the version of the members, nil if they are not what the control plane
	// calls so.
	origin *cache.OriginVersion
	// expired are members that were not renewed in time. Should the control plane say
	// that one lives, the set is requested once more.
	expired map[string]struct{}

	// guessed: its members are those that the wildcard and names have, as the control plane
	// did not answer. See settleHeld.
	guessed bool
	// hidden: there was something bad without a name that is known, which may be a member,
	// and no good response since.
	hidden bool
	// incomplete: more of its first answer may follow. See grace.go.
	incomplete bool

	// Of the present stream:

	// resumed: it was known before, and the control plane was sent what of it. stated: in SotW,
	// there was a full response.
	resumed, stated bool
	// came are the first members that came in the first answers of the stream, at most maxCame.
	came map[string]struct{}
	// latest is when the answer counts as complete whatever comes, zero before a response.
	latest time.Time
	part   time.Time // when the last part of it came, zero before a response
	asked  time.Time // when it was requested last
	first  firstAnswer
	// listed is what a control plane knows to be held while the set has no answer, because
	// it was in initial_resource_versions, or because it came for another set or for a name.
	// It is not sent again because of this one, so it counts as a member.
	listed map[string]*cache.Resource
	// recalled: some of that was recalled, see recall.go.
	recalled bool

	// parts are the members of the wildcard by the globs in whose directories they are,
	// see inWildcard.
	parts parts
}

// maxCame bounds set.came. Beyond it, members that are taken back at once are taken for removals of
// what there was before.
const maxCame = 1000

func (c *set) isWildcard() bool { return c.name == cache.Wildcard }

// list notes that a control plane need not send a resource again because of the set.
func (c *set) list(key string, r *cache.Resource) {
	if c.listed == nil {
		c.listed = map[string]*cache.Resource{}
	}
	c.listed[key] = r
}

// note keeps why a name of the set could not be had, for who subscribes later.
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

// partial says that a member that is missing may exist nevertheless.
func (c *set) partial() bool { return c.guessed || c.hidden }

// noteHidden notes whether a response leaves open what all of the members are: as long as
// its first answer is not complete, what one part of that has left open stays so.
func (c *set) noteHidden(p *part, v *accepted, sotw, settling bool) {
	switch {
	case v.hidden:
		c.hidden = true
	case p.full, !sotw && !settling && !v.onlyBeats():
		c.hidden = false
	}
}

// replace puts other members in the place of all that there are.
func (c *set) replace(members *cache.Resources) { c.members, c.parts = members, parts{} }

// put keeps a member, or none if r is nil.
func (c *set) put(key string, r *cache.Resource) {
	c.parts.put(key, r)
	if r == nil {
		c.members.Delete(key)
		return
	}
	if !c.answered { // more is to come: see settle
		c.members.Grow()
	}
	c.members.Put(key, r)
	delete(c.expired, key)
}

// restate returns what is held, and what could not be had.
func (c *set) restate() cache.SetUpdate {
	return c.restateOf(c.name, c.members, func(string) bool { return true })
}

// restateOf returns the members of a set that is a part of c, with the errors of those names.
func (c *set) restateOf(name string, members *cache.Resources, of func(key string) bool) cache.SetUpdate {
	u := cache.SetUpdate{Name: name, Full: true, Origin: c.origin, Partial: c.partial(), Incomplete: c.incomplete, Answer: cache.FirstAnswer}
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

// part is what a response says of one set.
type part struct {
	set *set
	// held is what the set gave before, where the response has all of it.
	held    *cache.Resources
	changes []cache.Change
	begins  bool // nothing was known of it
	full    bool // what is not in the response is gone
	bad     bool // there was something that cannot be stored
	// grown says that there was a name which an incomplete set did not have.
	grown bool
	// certain says that something in the response was sent because of the set. What is
	// requested by name as well may have been sent because of that.
	certain bool
}
