package upstream

import (
	"fmt"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// TestNamesThatWereGivenUpAreForgotten holds that what clients asked for and gave up
// costs nothing once no answer can be on its way, however much it was, and though
// nothing else happens.
func TestNamesThatWereGivenUpAreForgotten(t *testing.T) {
	for protocol, newSession := range map[string]func(*paramSets) session{
		"delta": func(sets *paramSets) session { return newDeltaSession(sets) },
		"sotw":  func(sets *paramSets) session { return newSotWSession(sets) },
	} {
		t.Run(protocol, func(t *testing.T) {
			now := time.Unix(0, 0)
			sets := newParamSets(cache.Scope{}, "t")
			s := newSession(sets)
			subs := sets.of("")
			name := func(i int) string { return fmt.Sprint("name-", i) }
			const many = 1000
			for i := range many {
				subs.start(name(i), nil, &cache.Update{})
			}
			s.requests(now, 1<<20)
			queue := subs.waiting[:1]
			for i := range many {
				subs.stop(name(i))
			}
			s.requests(now, 1<<20)

			due, ok := sets.nextDue()
			if want := now.Add(onTheWay); !ok || !due.Equal(want) {
				t.Errorf("the next is due at %v, %t, want %v", due, ok, want)
			}
			sets.expire(due)
			s.conclude(due, onTheWay, selective)
			if n := len(subs.names); n > 0 {
				t.Errorf("%d names are still there", n)
			}
			if n := len(sets.left.at); n > 0 {
				t.Errorf("%d names are still known to have been given up", n)
			}
			if queue[0].subs != nil {
				t.Error("names that have waited for an answer are still referred to")
			}
			if at, ok := sets.nextDue(); ok {
				t.Errorf("there is still something due, at %v", at)
			}
		})
	}
}
