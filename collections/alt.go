package collections

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
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
	alt  bool      // the alternative is used
	good time.Time // since when the other could be used again, zero if it cannot
}

// choose evaluates a URL that has an alternative.
func (e *evaluation) choose(u, alt urn.URL, typeURL string, passed []string) result {
	first := e.primary(u, typeURL, passed)
	if !e.useAlt(u, &first) {
		return first
	}
	// Alternatives are bounded together with redirects, in which they may nest.
	passed = append(passed[:len(passed):len(passed)], "#alt="+alt.String())
	if len(passed) > e.resolver.depth {
		return failure(codes.FailedPrecondition, "more than %d redirects and alternatives in a row: %s", e.resolver.depth, chain(passed))
	}
	second := e.url(alt, typeURL, passed)
	switch {
	case second.Status == cache.Present:
		return second
	case first.known() || first.Status == cache.Requested:
		return first
	case second.Status == cache.Requested:
		return second
	}
	return first.and(alt, &second)
}

// useAlt says whether the alternative is to be used.
func (e *evaluation) useAlt(u urn.URL, first *result) bool {
	if e.choices == nil {
		e.choices = map[string]*choice{}
		e.resolver.choosing[e.follow] = struct{}{}
	}
	c := e.choices[u.String()]
	if c == nil {
		c = &choice{}
		e.choices[u.String()] = c
	}
	e.chosen[u.String()] = true
	policy := e.resolver.names.Policy(u.Key().Authority)
	switch {
	case first.down, policy.NotFound && first.Status == cache.Absent:
		*c = choice{alt: true}
	case !c.alt:
	case !first.known():
		c.good = time.Time{} // it has not answered yet
	case c.good.IsZero() && policy.Hysteresis > 0:
		c.good = e.now
		fallthrough
	case !c.good.IsZero() && e.now.Sub(c.good) < policy.Hysteresis:
		e.wakeAt(c.good.Add(policy.Hysteresis))
	default:
		*c = choice{}
	}
	return c.alt
}

// wakeAt has the follow evaluated again at that time, or before.
func (e *evaluation) wakeAt(at time.Time) {
	if e.dueAt.IsZero() || at.Before(e.dueAt) {
		e.dueAt = at
	}
}

// down says whether a leaf topic is not to be had, or out of date, because its
// authority cannot be reached.
func (e *evaluation) down(key cache.Key, is *cache.State) bool {
	if is.Status == cache.Failed {
		switch is.Err.Code {
		case codes.Unavailable, codes.DeadlineExceeded:
			return true
		}
	}
	policy := e.resolver.names.Policy(key.Scope.Authority)
	if !policy.Unreachable {
		return false
	}
	since, down := e.resolver.names.Unreachable(key.Scope)
	if !down {
		return false
	}
	if at := since.Add(policy.Grace); at.After(e.now) {
		e.wakeAt(at)
		return false
	}
	return true
}

// and is the failure of both of two.
func (r *result) and(alt urn.URL, second *result) result {
	why := "does not exist"
	if second.Err != nil {
		why = second.Err.Error()
	}
	first := cache.Error{Code: codes.Unavailable}
	if r.Err != nil {
		first = *r.Err
	}
	first.Message = fmt.Sprintf("%s; and its alternative %s: %s", first.Message, alt, why)
	return result{State: cache.State{Status: cache.Failed, Err: &first}, origin: r.origin, down: r.down}
}
