package collections

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
)

// Errors of what is found elsewhere say by which way. Relays tell each other their errors,
// and do so in a circle where redirects lead from each to the next: no relay sees more of
// that than its own part, but by their errors they come to know of the rest. Whatever they
// hear from each other, they must come to the same words in the end, or they would go on
// telling each other for ever.

const (
	byWay  = "by way of "
	circle = "redirects in a circle of relays: "
)

// byWayOf returns the error of a name with the way on which it was met.
func (e *evaluation) byWayOf(err *cache.Error, passed []string, name string) *cache.Error {
	way := slices.DeleteFunc(append(slices.Clone(passed), name), func(n string) bool { return strings.HasPrefix(n, altMark) })
	if len(way) < 2 || strings.HasPrefix(err.Message, circle) {
		return err
	}
	further, why, ok := cutWay(err.Message)
	switch {
	case ok && further[0] == name:
		for i, n := range further[1:] {
			if at := slices.Index(way, n); at >= 0 {
				return e.circle(append(way[at:], further[1:i+1]...))
			}
		}
		way = append(way, further[1:]...)
	case !slices.ContainsFunc(way, func(n string) bool { return !strings.Contains(err.Message, n) }):
		return err // it says all that
	default:
		why = err.Message
	}
	return &cache.Error{Code: err.Code, Message: loglines.Clip(byWay + chain(way) + ": " + why), Outage: err.Outage, Silent: err.Silent, Refused: err.Refused}
}

// cutWay takes what byWayOf returns apart.
func cutWay(message string) (way []string, why string, ok bool) {
	names, ok := strings.CutPrefix(message, byWay)
	if !ok {
		return nil, "", false
	}
	names, why, ok = strings.Cut(names, ": ")
	return strings.Split(names, " -> "), why, ok
}

// circle is the error of names of which each redirects to the next, and the last to the
// first: the same at each of the relays.
func (e *evaluation) circle(names []string) *cache.Error {
	said := turned(names)
	e.loops = append(e.loops, said)
	return &cache.Error{Code: codes.Unavailable, Message: loglines.Clip(circle + said)}
}
