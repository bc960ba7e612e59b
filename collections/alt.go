package collections

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "Alternatives". gRFC A71: "Fallback".

// Policy is when an alternative replaces an authority's resource. Otherwise the resource,
// the primary, is used.
type Policy struct {
	// Unreachable: use alternatives once the authority was unreachable for Grace, also if
	// the primary is cached. Otherwise use them only if it is not.
	Unreachable bool
	Grace       time.Duration
	// Hysteresis is the time for which the primary must be available again before it is
	// used again.
	Hysteresis time.Duration
	// NotFound: use alternatives also if the primary does not exist.
	NotFound bool
}

// choice is the state of the choice between a primary and its alternative.
type choice struct {
	// wantsAlt: the alternative is to be used, if it has a resource.
	wantsAlt bool
	// usesAlt: the alternative had a resource at the last evaluation.
	usesAlt          bool
	primaryGoodSince time.Time // since when the primary could be used again, zero if it cannot
}

// altMark is the prefix of alternatives on a path: alternatives and redirects are bounded
// together, because they nest.
const altMark = "#alt="

// choose evaluates a URL that has an alternative.
func (e *evaluation) choose(u, alt urn.URL, typeURL string, passed []string) result {
	first := e.lookUpPrimary(u, typeURL, passed)
	c := e.choice(u)
	policy := e.resolver.names.Policy(u.Key().Authority)
	lost := first.unreachable || policy.NotFound && doesNotExist(first.Status, first.Err)
	e.evaluateAgainAt(c.decide(lost, first.Status != cache.Requested && !first.withinGrace, policy.Hysteresis, e.now))
	if !c.wantsAlt {
		return first
	}
	passed = append(passed[:len(passed):len(passed)], altMark+alt.Key().Name)
	var second result
	if len(passed) > e.resolver.depth {
		second = e.tooDeep(passed)
	} else {
		second = e.lookUpURL(alt, typeURL, passed)
	}
	// If both are out of date clients keep what they have.
	stale := second.unreachable && first.Status == cache.Present && !c.usesAlt
	switch c.usesAlt = second.Status == cache.Present && !stale; {
	case c.usesAlt:
		return second
	case first.Status == cache.Present:
		return first
	case second.Status == cache.Requested, first.Status == cache.Requested:
		return result{State: cache.State{Status: cache.Requested}}
	case first.Status == cache.Absent && (second.Status == cache.Absent || !lost):
		return first
	}
	return first.bothFailed(alt, &second)
}

// decide chooses. lost: the alternative is to replace the primary; answered: the primary has
// an answer that is expected to last. It returns when to decide again, zero for never.
func (c *choice) decide(lost, answered bool, hysteresis time.Duration, now time.Time) (again time.Time) {
	switch {
	case lost:
		c.wantsAlt, c.primaryGoodSince = true, time.Time{}
	case !c.wantsAlt:
	case !answered:
		c.primaryGoodSince = time.Time{} // no answer yet, or unreachable again
	case c.primaryGoodSince.IsZero() && hysteresis > 0:
		c.primaryGoodSince = now
		return now.Add(hysteresis)
	case now.Sub(c.primaryGoodSince) < hysteresis:
		return c.primaryGoodSince.Add(hysteresis)
	default:
		*c = choice{}
	}
	return time.Time{}
}

// choice returns the state of the choice between a URL and its alternative.
func (e *evaluation) choice(u urn.URL) *choice {
	if e.choices == nil {
		e.choices = map[string]*choice{}
	}
	if e.chosen == nil {
		e.chosen = map[string]bool{}
	}
	e.chosen[u.String()] = true
	c := e.choices[u.String()]
	if c == nil {
		c = &choice{}
		e.choices[u.String()] = c
	}
	return c
}

// forgetChoices removes all choices except those of these URLs.
func (f *lookup) forgetChoices(but map[string]bool) {
	if f.choices == nil {
		return
	}
	maps.DeleteFunc(f.choices, func(url string, _ *choice) bool { return !but[url] })
	if len(f.choices) > 0 {
		f.resolver.choosing[f] = struct{}{}
		return
	}
	f.choices = nil
	if !f.needsReachability {
		r := f.resolver
		r.choosing = cache.Without(r.choosing, &r.rooms.choosing, f)
	}
}

// evaluateAgainAt schedules an evaluation for that time at the latest, zero for never.
func (e *evaluation) evaluateAgainAt(at time.Time) {
	if !at.IsZero() && (e.nextAt.IsZero() || at.Before(e.nextAt)) {
		e.nextAt = at
	}
}

// doesNotExist reports whether the resource does not exist, as far as that can be known: a
// SotW server reports it by silence.
func doesNotExist(status cache.Status, err *cache.Error) bool {
	return status == cache.Absent || status == cache.Failed && err.Silent
}

// reachability returns whether a leaf topic is unreachable or withinGrace (see result), and
// when time alone may change that, zero for never.
func (r *Resolver) reachability(key cache.Key, status cache.Status, err *cache.Error, now time.Time) (down, shaky bool, again time.Time) {
	if status == cache.Failed && !err.Silent {
		switch err.Code {
		case codes.Unavailable, codes.DeadlineExceeded:
			return true, false, time.Time{}
		}
	}
	policy := r.names.Policy(key.Scope.Authority)
	if !policy.Unreachable {
		return false, false, time.Time{}
	}
	since, unreachable := r.names.Unreachable(key.Scope)
	if at := since.Add(policy.Grace); unreachable && at.After(now) {
		return false, true, at
	}
	return unreachable, false, time.Time{}
}

// bothFailed returns the failure of a URL and its alternative.
func (r *result) bothFailed(alt urn.URL, second *result) result {
	err := cache.Error{Code: codes.Unavailable, Message: r.origin + " " + reasonOf(r)}
	if r.Status == cache.Failed && strings.HasPrefix(r.Err.Message, acrossRelaysPrefix) {
		// The message of a loop must stay the same at all relays.
		return result{State: cache.State{Status: cache.Failed, Err: r.Err}, origin: r.origin, unreachable: r.unreachable || second.unreachable}
	}
	switch {
	case r.Status == cache.Failed:
		err = *r.Err
	case second.Status == cache.Failed:
		err.Code, err.Outage = second.Err.Code, second.Err.Outage
	}
	err.Silent = doesNotExist(r.Status, r.Err) && doesNotExist(second.Status, second.Err)
	err.Message = loglines.Clip(fmt.Sprintf("%s; and its alternative %s %s", err.Message, alt.Key().Name, reasonOf(second)))
	return result{State: cache.State{Status: cache.Failed, Err: &err}, origin: r.origin, unreachable: r.unreachable || second.unreachable}
}

// reasonOf describes why a result has no resource.
func reasonOf(r *result) string {
	switch {
	case r.Status == cache.Failed:
		return "failed: " + r.Err.Error()
	case r.Err != nil:
		return "does not exist: " + r.Err.Message
	}
	return "does not exist"
}
