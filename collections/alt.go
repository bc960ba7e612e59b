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

// Policy says when an alternative takes the place of an authority's resource. The
// resource is used whenever it can be had.
type Policy struct {
	// Unreachable has alternatives used as soon as the authority cannot be reached
	// for Grace, also if the resource is held. Otherwise they are used only if it is
	// not.
	Unreachable bool
	Grace       time.Duration
	// Hysteresis is how long the resource must have been there again before it is
	// used again.
	Hysteresis time.Duration
	// NotFound has alternatives used also if the authority says that the resource
	// does not exist.
	NotFound bool
}

// choice is between a URL and its alternative.
type choice struct {
	// wanted: the alternative is used, if there is something under it.
	wanted bool
	// used: there was, the last time.
	used bool
	good time.Time // since when the URL itself could be used again, zero if it cannot
}

// altMark begins what stands for an alternative among the names that were passed:
// alternatives are bounded together with redirects, in which they may nest.
const altMark = "#alt="

// choose evaluates a URL that has an alternative.
func (e *evaluation) choose(u, alt urn.URL, typeURL string, passed []string) result {
	first := e.primary(u, typeURL, passed)
	c := e.choice(u)
	policy := e.resolver.names.Policy(u.Key().Authority)
	lost := first.down || policy.NotFound && missing(first.Status, first.Err)
	e.wakeAt(c.decide(lost, first.Status != cache.Requested && !first.shaky, policy.Hysteresis, e.now))
	if !c.wanted {
		return first
	}
	passed = append(passed[:len(passed):len(passed)], altMark+alt.Key().Name)
	var second result
	if len(passed) > e.resolver.depth {
		second = e.tooDeep(passed)
	} else {
		second = e.url(alt, typeURL, passed)
	}
	// Between two that are out of date, what clients have is better than a change.
	stale := second.down && first.Status == cache.Present && !c.used
	switch c.used = second.Status == cache.Present && !stale; {
	case c.used:
		return second
	case first.Status == cache.Present:
		return first
	case second.Status == cache.Requested, first.Status == cache.Requested:
		return result{State: cache.State{Status: cache.Requested}}
	case first.Status == cache.Absent && (second.Status == cache.Absent || !lost):
		return first
	}
	return first.and(alt, &second)
}

// decide decides between a URL and its alternative. lost: the alternative is to take
// its place; answered: there is an answer from the URL itself, which is to last. It
// returns when to decide again, zero for never.
func (c *choice) decide(lost, answered bool, hysteresis time.Duration, now time.Time) (again time.Time) {
	switch {
	case lost:
		c.wanted, c.good = true, time.Time{}
	case !c.wanted:
	case !answered:
		c.good = time.Time{} // it has not answered yet, or is going again
	case c.good.IsZero() && hysteresis > 0:
		c.good = now
		return now.Add(hysteresis)
	case now.Sub(c.good) < hysteresis:
		return c.good.Add(hysteresis)
	default:
		*c = choice{}
	}
	return time.Time{}
}

// choice returns what is remembered of the choice between a URL and its alternative.
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

// endChoices forgets all choices but those of these URLs.
func (f *follow) endChoices(but map[string]bool) {
	if f.choices == nil {
		return
	}
	maps.DeleteFunc(f.choices, func(url string, _ *choice) bool { return !but[url] })
	if len(f.choices) > 0 {
		f.resolver.choosing[f] = struct{}{}
		return
	}
	f.choices = nil
	if !f.reaches {
		r := f.resolver
		r.choosing = cache.Without(r.choosing, &r.rooms.choosing, f)
	}
}

// wakeAt has the follow evaluated again at that time, zero for never, or before.
func (e *evaluation) wakeAt(at time.Time) {
	if !at.IsZero() && (e.again.IsZero() || at.Before(e.again)) {
		e.again = at
	}
}

// missing says that what is asked for does not exist, as far as can be known: a SotW
// server has no other word for that than its silence.
func missing(status cache.Status, err *cache.Error) bool {
	return status == cache.Absent || status == cache.Failed && err.Silent
}

// reach says of a leaf topic whether it is down, or shaky (see result), and when that
// may be another for no other reason than the time, zero for never.
func (r *Resolver) reach(key cache.Key, status cache.Status, err *cache.Error, now time.Time) (down, shaky bool, again time.Time) {
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

// and is the failure of both a URL and its alternative.
func (r *result) and(alt urn.URL, second *result) result {
	err := cache.Error{Code: codes.Unavailable, Message: r.origin + " " + why(r)}
	if r.Status == cache.Failed && strings.HasPrefix(r.Err.Message, circle) {
		// Nothing is added to what goes round.
		return result{State: cache.State{Status: cache.Failed, Err: r.Err}, origin: r.origin, down: r.down || second.down}
	}
	switch {
	case r.Status == cache.Failed:
		err = *r.Err
	case second.Status == cache.Failed:
		err.Code, err.Outage = second.Err.Code, second.Err.Outage
	}
	err.Silent = missing(r.Status, r.Err) && missing(second.Status, second.Err)
	err.Message = loglines.Clip(fmt.Sprintf("%s; and its alternative %s %s", err.Message, alt.Key().Name, why(second)))
	return result{State: cache.State{Status: cache.Failed, Err: &err}, origin: r.origin, down: r.down || second.down}
}

// why says why there is nothing.
func why(r *result) string {
	switch {
	case r.Status == cache.Failed:
		return "failed: " + r.Err.Error()
	case r.Err != nil:
		return "does not exist: " + r.Err.Message
	}
	return "does not exist"
}
