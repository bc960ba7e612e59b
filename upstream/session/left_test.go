package session

import (
	"fmt"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// TestNamesThatWereGivenUpAreForgotten checks that any number of names that clients gave up
// cost nothing once no answer can be on its way, even if
// nothing else happens.
func TestNamesThatWereGivenUpAreForgotten(t *testing.T) {
	for protocol, newSession := range map[string]func(*Names) Session{
		"delta": func(n *Names) Session { return newDelta(&Topics{Names: n}) },
		"sotw":  func(n *Names) Session { return newSotWNames(n) },
	} {
		t.Run(protocol, func(t *testing.T) {
			now := time.Unix(0, 0)
			subs := NewNames(Config{Scope: cache.Scope{}, TypeURL: "t"})
			s := newSession(subs)
			name := func(i int) string { return fmt.Sprint("name-", i) }
			const many = 1000
			for i := range many {
				subs.start(name(i), nil, &cache.Update{})
			}
			s.Requests(now, 1<<20)
			queue := subs.waiting[:1]
			for i := range many {
				subs.stop(name(i))
			}
			s.Requests(now, 1<<20)

			due := now.Add(onTheWay)
			if at, ok := subs.nextDue(); ok != (protocol == "sotw") || ok && !at.Equal(due) {
				t.Errorf("the next is due at %v, %t, want %v in SotW", at, ok, due)
			}
			subs.expire(due)
			s.Conclude(due, onTheWay, Selective)
			if n := len(subs.subs); n > 0 {
				t.Errorf("%d names are still there", n)
			}
			if queue[0].subs != nil {
				t.Error("names that have waited for an answer are still referred to")
			}
			if at, ok := subs.nextDue(); ok {
				t.Errorf("there is still something due, at %v", at)
			}
		})
	}
}
