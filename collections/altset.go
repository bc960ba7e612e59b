package collections

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "Alternatives". A collection with an alternative: the rules are those of single
// resources, for all members at once.

// choiceSource are the members of a collection, or of its alternative.
type choiceSource struct {
	*setting
	to       *part
	url, alt urn.URL
	passed   []string

	union  *union // of both: the one that is not used does not count in it
	first  *part
	second *part // nil as long as it is not wanted
	choice choice
	question
	is    condition
	dueAt time.Time
	// changed are the keys of which another member counts, and whether again (see
	// sink) since they were offered.
	changed map[string]bool
}

func newChoiceSource(s *setting, to *part, u, alt urn.URL, passed []string) *choiceSource {
	c := &choiceSource{setting: s, to: to, url: u, alt: alt, passed: passed, changed: map[string]bool{}}
	c.union = newUnion(s, c)
	c.union.filled = c.turned
	s.begin(c)
	c.first = c.union.add(u.Key().Name, 0, func(p *part) source { return s.primary(p, u, passed) })
	return c
}

// elected implements sink.
func (c *choiceSource) elected(key string, _, _ offer, again bool) {
	c.changed[key] = c.changed[key] || again
	c.turned()
}

// turned implements sink.
func (c *choiceSource) turned() { c.todo(c) }

func (c *choiceSource) due() time.Time { return c.dueAt }

// step chooses.
func (c *choiceSource) step(now time.Time) {
	first := c.first.source.condition()
	policy := c.names.Policy(c.url.Key().Authority)
	lost := first.down || policy.NotFound && missing(first.status, first.err)
	c.dueAt = c.choice.decide(lost, first.status != cache.Requested && !first.shaky, policy.Hysteresis, now)
	if c.choice.wanted && c.second == nil {
		c.question = c.ask()
		passed := append(c.passed[:len(c.passed):len(c.passed)], altMark+c.alt.String())
		c.second = c.union.add(c.alt.String(), notCounted, func(p *part) source { return c.collection(p, c.alt, passed) })
	}
	is, other := first, condition{}
	if c.second != nil {
		other = c.second.source.condition()
	}
	if !c.choice.wanted || other.status != cache.Requested {
		c.over()
	}
	c.choice.used = c.choice.wanted && other.status == cache.Present &&
		(!other.down || first.status != cache.Present || c.choice.used) && // see choose
		(c.second.offers > 0 || first.status != cache.Present) // nothing is no replacement
	switch {
	case c.choice.used:
		is = other
	case !c.choice.wanted, first.status == cache.Present:
	case first.status == cache.Requested, other.status == cache.Requested:
		is = condition{down: first.down, shaky: first.shaky}
	case first.status == cache.Absent && (other.status == cache.Absent || !lost):
	default:
		is = condition{status: cache.Failed, err: c.both(first, other), down: first.down || other.down}
	}
	if is.status == cache.Requested && c.is.known() {
		return // what was there stays
	}
	c.count()
	for key, again := range c.changed {
		var won offer
		if m := c.union.members[key]; m != nil {
			won = m.elected
		}
		c.to.offer(key, won, again)
	}
	clear(c.changed)
	if c.is != is {
		c.is = is
		c.to.turned()
	}
}

// count has the members of the one that is used count. Those of the other go without a
// gap.
func (c *choiceSource) count() {
	first, second := 0, notCounted
	if c.choice.used {
		first, second = notCounted, 0
	}
	if c.first.rank != first {
		c.first.rank = first
		if c.second != nil {
			c.second.rank = second
		}
		c.union.reelect(true)
	}
	if c.second != nil && !c.choice.wanted {
		c.union.remove(c.second)
		c.second = nil
	}
}

// both is why neither can be had.
func (c *choiceSource) both(first, other condition) *cache.Error {
	a := result{State: cache.State{Status: first.status, Err: first.err}}
	b := result{State: cache.State{Status: other.status, Err: other.err}}
	r := a.and(c.alt, &b)
	return r.Err
}

func (c *choiceSource) condition() condition { return c.is }

func (c *choiceSource) offered(yield func(string)) {
	c.union.keys(yield)
	for key := range c.changed {
		yield(key)
	}
}

func (c *choiceSource) refresh() { c.union.refresh() }

func (c *choiceSource) close() {
	c.end(c)
	c.over()
	c.union.close()
}
