package guard_test

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// step is a step of a property test.
type step struct {
	// wait is how long nothing happens before.
	wait time.Duration
	// answer, full and incomplete are those of an update, complete that of one without changes.
	answer                     cache.Answer
	full, incomplete, complete bool
	// names are what there is then, if it is full; otherwise what comes, and goes, of it.
	names, goes []int
}

// TestTheGuardHoldsLostMembersAndNothingElse: for any updates of a source, clients have its members. Other members
// that clients have were lost in a first answer, within the hold time. No member that the source sent again is lost.
// In the end clients have exactly the source's members. If these are Listeners, no other member has the address of one of
// them.
func TestTheGuardHoldsLostMembersAndNothingElse(t *testing.T) {
	const most = 12
	numbers := rapid.SliceOfNDistinct(rapid.IntRange(0, most-1), 0, most, rapid.ID[int])
	rapid.Check(t, func(rt *rapid.T) {
		o := &guard.Options{
			Ratio: rapid.Float64Range(0.1, 1).Draw(rt, "ratio"), Least: rapid.IntRange(1, most).Draw(rt, "least"),
			Always: rapid.Bool().Draw(rt, "always"), Hold: time.Minute,
		}
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			s := step{
				wait:   time.Duration(rapid.IntRange(0, 40).Draw(rt, "wait")) * time.Second,
				answer: rapid.SampledFrom([]cache.Answer{cache.FirstAnswer, cache.LaterAnswer}).Draw(rt, "answer"),
				full:   rapid.Bool().Draw(rt, "full"), names: numbers.Draw(rt, "names"),
			}
			if s.full {
				s.incomplete = s.answer == cache.FirstAnswer && rapid.Bool().Draw(rt, "incomplete")
			} else {
				s.goes = numbers.Draw(rt, "goes")
			}
			return s
		}), 1, 20).Draw(rt, "steps")
		typeURL := rapid.SampledFrom([]string{testType, xdstype.ListenerV3}).Draw(rt, "type")
		wrong := ""
		synctest.Test(t, func(*testing.T) { wrong = playSteps(typeURL, o, steps) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// port is the port of a Listener. Several have the same.
func port(name string) int { return number(name)%5 + 1 }

// hasPort reports whether one of some Listeners has the port of another one.
func hasPort(names map[string]bool, as string) bool {
	for name := range names {
		if port(name) == port(as) {
			return true
		}
	}
	return false
}

// guards reports whether the guard checks such an answer.
func guards(o *guard.Options, a cache.Answer) bool {
	return a == cache.FirstAnswer || o.Always && a == cache.LaterAnswer
}

// playSteps plays the steps, and returns what is wrong.
func playSteps(typeURL string, o *guard.Options, steps []step) string {
	p := newPlayer(typeURL, o, nil)
	defer p.end()
	has := map[string]bool{}                   // the source
	lost := map[string]time.Time{}             // what the source has lost in an answer that is guarded
	pending, known := map[string]bool{}, false // of an answer that is incomplete
	complete := func() {
		for name := range pending {
			delete(has, name)
			lost[name] = time.Now()
		}
		clear(pending)
	}
	for i, s := range append(steps, step{wait: time.Second, answer: cache.FirstAnswer, complete: true}) {
		time.Sleep(s.wait)
		synctest.Wait()
		u := cache.SetUpdate{Name: cache.Wildcard, Answer: s.answer, Extent: extentOf(s.full, s.incomplete, s.complete)}
		named := map[string]bool{}
		for _, n := range s.names {
			name := fmt.Sprintf("c%d", n)
			named[name] = true
			u.Changes = append(u.Changes, cache.Change{Name: name, Resource: p.member(name, "", port(name), 0)})
		}
		if s.full && !s.incomplete {
			clear(pending)
		}
		for name := range maps.Clone(has) {
			switch {
			case !s.full || named[name]:
			case s.incomplete:
				pending[name] = true
			default:
				delete(has, name)
				if guards(o, s.answer) {
					lost[name] = time.Now()
				}
			}
		}
		for _, n := range s.goes {
			name := fmt.Sprintf("c%d", n)
			if named[name] || !known {
				continue
			}
			u.Changes = append(u.Changes, cache.Change{Name: name, Gone: true})
			if has[name] && guards(o, s.answer) {
				lost[name] = time.Now()
			}
			delete(has, name)
			delete(pending, name)
		}
		for name := range named {
			has[name] = true
			delete(pending, name)
			delete(lost, name)
		}
		for name := range pending {
			if typeURL == xdstype.ListenerV3 && hasPort(named, name) {
				delete(pending, name)
				delete(has, name)
				lost[name] = time.Now()
			}
		}
		if s.complete {
			complete()
		}
		known = true
		had := p.set.Len()
		p.Apply(cache.Update{Scope: testScope, TypeURL: typeURL, Sets: []cache.SetUpdate{u}})
		if n := p.set.Len(); len(has) == 0 && guards(o, s.answer) && !s.incomplete && n < had && n == 0 {
			return fmt.Sprintf("after step %d: clients have nothing left of %d", i, had)
		}
		if wrong := p.compare(has, lost, o.Hold); wrong != "" {
			return fmt.Sprintf("after step %d: %s", i, wrong)
		}
	}
	time.Sleep(o.Hold + time.Second)
	synctest.Wait()
	clear(lost)
	if wrong := p.compare(has, lost, 0); wrong != "" {
		return "in the end: " + wrong
	}
	return ""
}

// compare compares what clients have with what they should have.
func (p *player) compare(has map[string]bool, lost map[string]time.Time, hold time.Duration) string {
	besides, clients := 0, map[string]bool{}
	p.cache.Contents(p.wildcard, func(name string, _ *cache.Resource) { clients[name] = true })
	for name := range clients {
		at, wasLost := lost[name]
		switch {
		case has[name]:
		case !wasLost:
			return fmt.Sprintf("clients have %s, which the source does not have, and has not lost in a first answer", name)
		case p.wildcard.TypeURL == xdstype.ListenerV3 && hasPort(has, name):
			return fmt.Sprintf("clients have %s, whose address another member of the source has", name)
		case time.Since(at) > hold:
			return fmt.Sprintf("clients have %s, which the source has lost %v ago", name, time.Since(at))
		default:
			besides++
		}
	}
	for name := range has {
		if !clients[name] {
			return fmt.Sprintf("clients do not have %s, which the source has", name)
		}
	}
	if n := p.stats.Held.Load(); n != int64(besides) {
		return fmt.Sprintf("%d members count as held, and clients have %d that the source does not have", n, besides)
	}
	return ""
}
