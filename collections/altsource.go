package collections

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "Alternatives". A collection with an alternative follows the rules of single
// resources, for all members at once.

// altSource gives the members of a collection, or of its alternative.
type altSource struct {
	*setContext
	to       *input
	url, alt urn.URL
	path     []string

	union       *union // of both; the unused one has rank notCounted
	primary     *input
	alternative *input // nil while choice.wantsAlt is false
	choice      choice
	pendingQuery
	current sourceState
	dueAt   time.Time
	// changed are the keys with a new winner that are not passed on yet. The values are
	// renewed, as in sink.
	changed map[string]bool
}

func newAltSource(s *setContext, to *input, u, alt urn.URL, path []string) *altSource {
	c := &altSource{setContext: s, to: to, url: u, alt: alt, path: path, changed: map[string]bool{}}
	c.union = newUnion(s, c)
	c.union.onFilled = c.stateChanged
	s.startStep(c)
	c.primary = c.union.add(u.Key().Name, 0, func(p *input) source { return s.newPrimarySource(p, u, path) })
	return c
}

// winnerChanged implements sink.
func (c *altSource) winnerChanged(key string, _, _ candidate, renewed bool) {
	c.changed[key] = c.changed[key] || renewed
	c.stateChanged()
}

// stateChanged implements sink.
func (c *altSource) stateChanged() { c.schedule(c) }

func (c *altSource) due() time.Time { return c.dueAt }

// step chooses the primary or the alternative, and passes on the changes.
func (c *altSource) step(now time.Time) {
	first := c.primary.source.state()
	policy := c.names.Policy(c.url.Key().Authority)
	lost := first.unreachable || policy.NotFound && doesNotExist(first.status, first.err)
	c.dueAt = c.choice.decide(lost, first.status != cache.Requested && !first.withinGrace, policy.Hysteresis, now)
	if c.choice.wantsAlt && c.alternative == nil {
		c.pendingQuery = c.beginQuery()
		path := append(c.path[:len(c.path):len(c.path)], altMark+c.alt.String())
		c.alternative = c.union.add(c.alt.String(), notCounted, func(p *input) source { return c.newCollectionSource(p, c.alt, path) })
	}
	is, other := first, sourceState{}
	if c.alternative != nil {
		other = c.alternative.source.state()
	}
	if !c.choice.wantsAlt || other.status != cache.Requested {
		c.endQuery()
	}
	c.choice.usesAlt = c.choice.wantsAlt && other.status == cache.Present &&
		(!other.unreachable || first.status != cache.Present || c.choice.usesAlt) && // see choose
		(c.alternative.available > 0 || first.status != cache.Present) // an empty collection does not replace another
	switch {
	case c.choice.usesAlt:
		is = other
	case !c.choice.wantsAlt, first.status == cache.Present:
	case first.status == cache.Requested, other.status == cache.Requested:
		is = sourceState{unreachable: first.unreachable, withinGrace: first.withinGrace}
	case first.status == cache.Absent && (other.status == cache.Absent || !lost):
	default:
		is = sourceState{status: cache.Failed, err: c.bothFailed(first, other), unreachable: first.unreachable || other.unreachable}
	}
	if is.status == cache.Requested && c.current.known() {
		return // the members stay
	}
	c.applyChoice()
	for key, renewed := range c.changed {
		var won candidate
		if m := c.union.members[key]; m != nil {
			won = m.winner
		}
		c.to.set(key, won, renewed)
	}
	clear(c.changed)
	if c.current != is {
		c.current = is
		c.to.stateChanged()
	}
}

// applyChoice makes the members of the chosen collection count. They replace the members of
// the other one without a gap.
func (c *altSource) applyChoice() {
	first, second := 0, notCounted
	if c.choice.usesAlt {
		first, second = notCounted, 0
	}
	if c.primary.rank != first {
		c.noteAnswer(cache.FirstAnswer) // of another authority
		c.primary.rank = first
		if c.alternative != nil {
			c.alternative.rank = second
		}
		c.union.decideAgain(true)
	}
	if c.alternative != nil && !c.choice.wantsAlt {
		c.union.remove(c.alternative)
		c.alternative = nil
	}
}

// bothFailed returns the error of both collections.
func (c *altSource) bothFailed(first, other sourceState) *cache.Error {
	a := result{State: cache.State{Status: first.status, Err: first.err}}
	b := result{State: cache.State{Status: other.status, Err: other.err}}
	r := a.bothFailed(c.alt, &b)
	return r.Err
}

func (c *altSource) state() sourceState { return c.current }

func (c *altSource) keys(yield func(string)) {
	c.union.keys(yield)
	for key := range c.changed {
		yield(key)
	}
}

func (c *altSource) refresh() { c.union.refresh() }

func (c *altSource) refuse(key string, sent uint32) { c.union.refuse(key, sent) }

func (c *altSource) close() {
	c.endStep(c)
	c.endQuery()
	c.union.close()
}
