package collections

import (
	"maps"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "Alternatives". gRFC A71: "Fallback".

// decide updates wantsAlt. lost: the alternative has to replace the primary. answered: the primary
// has an answer that is expected to last. decide returns when it has to be called again, zero for never.
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

// patience is how long an alternative waits for the answer of its primary. It is requested after half of that.
const patience = time.Second

// missing reports whether a primary counts as not existing. In SotW its absence is certain only after a long silence. So
// it counts as missing until there is an answer, if the control plane has passed it over for patience. Time alone does not
// count, because the control plane may be slow. late: the alternative may be needed soon.
func (e *evaluation) missing(c *choice, first *result) (missing, late bool) {
	if first.Status != cache.Requested || first.leaf == nil {
		c.waitsSince = time.Time{}
		return doesNotExist(first.Status, first.Err), false
	}
	if c.waitsSince.IsZero() {
		c.waitsSince = e.now
	}
	waited, next := e.now.Sub(c.waitsSince), patience/2
	if waited >= patience && e.resolver.names.PassesOver(first.leaf.key, c.waitsSince) {
		return true, true
	}
	for next <= waited { // ever less often, because there may be no answer for long
		next *= 2
	}
	e.evaluateAgainAt(c.waitsSince.Add(next))
	return false, waited >= patience/2
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

// forgetChoices removes all choices except those of the URLs in but.
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

// evaluateAgainAt schedules an evaluation at the latest for a time; zero schedules none.
func (e *evaluation) evaluateAgainAt(at time.Time) {
	if !at.IsZero() && (e.nextAt.IsZero() || at.Before(e.nextAt)) {
		e.nextAt = at
	}
}

// reachability returns whether a leaf topic is unreachable or withinGrace (see result), and
// when the passing of time may change that, zero for never.
func (r *Resolver) reachability(key cache.Key, status cache.Status, err *cache.Error, now time.Time) (unreachable, withinGrace bool, again time.Time) {
	if status == cache.Failed && !err.Unanswered {
		switch err.Code {
		case codes.Unavailable, codes.DeadlineExceeded:
			return true, false, time.Time{}
		}
	}
	policy := r.names.Policy(key.Scope.Authority)
	if !policy.Unreachable {
		return false, false, time.Time{}
	}
	since, unreachable := r.names.Unreachable(key.Scope.Accepted())
	if at := since.Add(policy.Grace); unreachable && at.After(now) {
		return false, true, at
	}
	return unreachable, false, time.Time{}
}
