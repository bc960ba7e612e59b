package collections

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/loglines"
)

// Loops: found by whoever comes upon one, told to clients as an error of the name
// that they asked for, and to the operator once, however many names lead into it. Authorities can make any number of
// them, so the lines of log are bounded.

// loop is the result of coming back to the first of these names.
func (e *evaluation) loop(names []string) result {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return strings.HasPrefix(n, altMark) })
	e.loops = append(e.loops, turned(names))
	return failure(codes.FailedPrecondition, "redirects in a loop: %s", chain(append(names, names[0])))
}

// turned is a loop in the same words, whichever of its names one has come in by.
func turned(names []string) string {
	first := slices.Index(names, slices.Min(names))
	return chain(append(append(names[first:len(names):len(names)], names[:first]...), names[first]))
}

func chain(names []string) string { return strings.Join(names, " -> ") }

// noteLoops notes that a follow has come upon these loops, and upon those before.
func (r *Resolver) noteLoops(before, now []string) {
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
