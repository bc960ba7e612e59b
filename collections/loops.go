package collections

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Loops of redirects. A lookup that runs into a loop fails, and its clients get an error. The
// relay logs one line per loop, however many names lead into it. Authorities can make up any
// number of loops, so these lines are rate limited.

// loopError returns the result of a path that leads back to its first name.
func (e *evaluation) loopError(names []string) result {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return strings.HasPrefix(n, altMark) })
	e.loops = append(e.loops, canonicalLoop(names))
	return failure(codes.FailedPrecondition, "redirects in a loop: %s", joinPath(append(names, names[0])))
}

// canonicalLoop describes a loop. The text does not depend on the name at which an evaluation
// entered the loop.
func canonicalLoop(names []string) string {
	first := slices.Index(names, slices.Min(names))
	return joinPath(append(append(names[first:len(names):len(names)], names[:first]...), names[first]))
}

func joinPath(names []string) string { return strings.Join(names, " -> ") }

// recordLoops replaces the loops of a lookup's previous evaluation with those of the newest one, and
// logs loops that no other lookup had found.
func (r *Resolver) recordLoops(before, now []string) {
	for _, l := range now {
		if r.loops[l]++; r.loops[l] == 1 {
			r.stats.loops.Add(1)
			if log, ok := r.loopLines.Next(r.log); ok {
				log.Warn("redirects in a loop", "names", loglines.Clip(l))
			}
		}
	}
	for _, l := range before {
		if r.loops[l]--; r.loops[l] == 0 {
			delete(r.loops, l)
		}
	}
}

// Loops across relays. No relay sees the whole loop if redirects lead through authorities of
// several relays: each relay waits for the next. But each relay passes errors on, and adds the
// path of redirects that led to the error. So the relays find the loop when the path returns to
// a name. All of them must arrive at the same message, or they would send each other new errors
// forever.

// withPath returns the error of a name with the path on which the lookup found it.
func (e *evaluation) withPath(err *cache.Error, path []string, name string) *cache.Error {
	way := slices.DeleteFunc(append(slices.Clone(path), name), func(n string) bool { return strings.HasPrefix(n, altMark) })
	if len(way) < 2 || strings.HasPrefix(err.Message, acrossRelaysPrefix) {
		return err
	}
	further, why, ok := cutPath(err.Message)
	switch {
	case ok && further[0] == name:
		for i, n := range further[1:] {
			if at := slices.Index(way, n); at >= 0 {
				return e.loopAcrossRelays(append(way[at:], further[1:i+1]...))
			}
		}
		way = append(way, further[1:]...)
	case !slices.ContainsFunc(way, func(n string) bool { return !strings.Contains(err.Message, n) }):
		return err // the message has the whole path already
	default:
		why = err.Message
	}
	return &cache.Error{Code: err.Code, Message: loglines.Clip(viaPrefix + joinPath(way) + ": " + why), Outage: err.Outage, Unanswered: err.Unanswered, Refused: err.Refused}
}

// cutPath splits a message of withPath into its path and the reason.
func cutPath(message string) (way []string, why string, ok bool) {
	names, ok := strings.CutPrefix(message, viaPrefix)
	if !ok {
		return nil, "", false
	}
	names, why, ok = strings.Cut(names, ": ")
	return strings.Split(names, " -> "), why, ok
}

// loopAcrossRelays returns the error for names that each redirect to the next, and the last to
// the first. The message is the same at each relay.
func (e *evaluation) loopAcrossRelays(names []string) *cache.Error {
	loop := canonicalLoop(names)
	e.loops = append(e.loops, loop)
	return &cache.Error{Code: codes.Unavailable, Message: loglines.Clip(acrossRelaysPrefix + loop)}
}

// altMark is the prefix of alternatives on a path: alternatives and redirects are bounded
// together, because they nest.
const altMark = "#alt="
