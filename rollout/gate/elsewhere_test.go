package gate

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/chain"
)

// onTopics is a fixture in which the test defines what the source sends for each topic.
type onTopics struct {
	*trialWorld
	t *testing.T
}

// topics runs a test with a wildcard that has a and b at version 1, and with three clients.
func topics(t *testing.T, test func(f *onTopics)) {
	t.Helper()
	rapid.Check(t, func(r *rapid.T) {
		f := &onTopics{&trialWorld{fixture: newFixture(r), may: map[string]map[string]bool{}}, t}
		f.set(true, "a", "a1", "b", "b1")
		for _, node := range []string{"x", "y", "z"} {
			m, _ := f.gate.controller.Join(f.scope, Client{Node: node, Cohort: "c", Eligible: true, Wake: func() {}})
			m.Settled()
			f.members = append(f.members, m)
		}
		f.step()
		test(f)
	})
}

// set makes the source send members of the wildcard, as names and contents.
func (f *onTopics) set(full bool, members ...string) {
	u := cache.SetUpdate{Name: cache.Wildcard, Extent: cache.WholeIf(full)}
	for i := 0; i < len(members); i += 2 {
		u.Changes = append(u.Changes, cache.Change{Name: members[i], Resource: resourceOf(members[i], members[i+1])})
	}
	f.sink.Apply(cache.Update{Scope: f.scope, TypeURL: testType, Sets: []cache.SetUpdate{u}})
	f.step()
}

// entry makes the source send the resource of a name.
func (f *onTopics) entry(name, content string) {
	f.sink.Apply(cache.Update{Scope: f.scope, TypeURL: testType, Changes: []cache.Change{{Name: name, Resource: resourceOf(name, content)}}})
	f.step()
}

// subscribe makes clients of both sides subscribe to a name.
func (f *onTopics) subscribe(name string) (accepted, newer func() string) {
	k := cache.Key{Scope: f.scope, TypeURL: testType, Name: name}
	of, _ := f.cache.Watch(k, &watcher{})
	k.Scope.New = true
	ofNew, _ := f.cache.Watch(k, &watcher{})
	f.step()
	return func() string { return contentOf(of) }, func() string { return contentOf(ofNew) }
}

func (f *onTopics) want(when string, is func() string, want string) {
	f.t.Helper()
	if is := is(); is != want {
		f.Fatalf("%s: there is %q, want %q", when, is, want)
	}
}

// A first answer is accepted, except for a resource that is pending in another topic: a client that subscribes to the
// name during the rollout gets the accepted resource, and the first clients get the new one.
func TestANewNameHasTheAcceptedStateOfTheWildcard(t *testing.T) {
	topics(t, func(f *onTopics) {
		f.set(false, "b", "b2")
		accepted, newer := f.subscribe("b")
		f.entry("b", "b2")
		f.want("during the rollout", accepted, "b1")
		f.want("on the new side", newer, "b2")
		f.entry("b", "b2")
		f.want("when it comes again", accepted, "b1")
		f.each(func(m *Member, showing uint64) { m.Sent(showing); m.Acked(showing) })
		f.step()
		f.pass()
		f.step()
		f.entry("b", "b2")
		f.want("after the first step", accepted, "b1")
		f.want("on the new side after the first step", newer, "b2")
		f.gate.controller.Approve(Which{})
		f.step()
		f.want("when it is accepted", accepted, "b2")
	})
}

// A name that did not exist has no answer until its resource is accepted.
func TestANewNameOfAnAddedResourceHasNoAnswerUntilAcceptance(t *testing.T) {
	topics(t, func(f *onTopics) {
		f.set(false, "c", "c2")
		accepted, newer := f.subscribe("c")
		for range 2 {
			f.entry("c", "c2")
			f.want("during the rollout", accepted, "")
			f.want("on the new side", newer, "c2")
		}
		f.each(func(m *Member, showing uint64) { m.Sent(showing); m.Acked(showing) })
		f.step()
		f.pass()
		f.step()
		f.entry("c", "c3") // the change waits for the next rollout, or another rollout begins
		f.set(false, "c", "c3")
		f.want("after a change", accepted, "")
		f.gate.controller.Approve(Which{})
		f.step()
		f.want("when it is accepted", accepted, "c3")
	})
}

// A rejected change is not tried again because a client subscribes to its name.
func TestARejectedChangeStaysRejectedOnANewTopic(t *testing.T) {
	for _, apart := range []bool{false, true} {
		topics(t, func(f *onTopics) {
			f.set(false, "b", "b2")
			f.rejectB()
			if apart {
				f.set(false, "a", "a2")
			}
			accepted, newer := f.subscribe("b")
			f.entry("b", "b2")
			f.want("after the rejection", accepted, "b1")
			if apart {
				f.want("on the new side", newer, "b1")
				if f.gate.pending.nWaits != 2 {
					f.Fatalf("%d changes wait, want b on both topics", f.gate.pending.nWaits)
				}
			} else if f.gate.machine.Phase().String() != "stopped" {
				f.Fatalf("what was rejected is tried again: %v", f.gate.machine.Phase())
			}
			f.entry("b", "b3")
			f.set(false, "b", "b3")
			f.want("when it has changed", newer, "b3")
			if f.gate.pending.nWaits != 0 {
				f.Fatalf("%d changes wait after the change", f.gate.pending.nWaits)
			}
		})
	}
}

// A wildcard is a topic like any other: it begins with the accepted state of the names.
func TestANewSetHasTheAcceptedStateOfNames(t *testing.T) {
	const other = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	for _, full := range []bool{false, true} {
		topics(t, func(f *onTopics) {
			send := func(name, content string) {
				f.sink.Apply(cache.Update{Scope: f.scope, TypeURL: other, Changes: []cache.Change{{Name: name, Resource: resourceOf(name, content)}}})
				f.step()
			}
			one := cache.Key{Scope: f.scope, TypeURL: other, Name: "one"}
			f.cache.Watch(one, &watcher{})
			send("one", "1")
			send("one", "2")
			k := cache.Key{Scope: f.scope, TypeURL: other, Name: cache.Wildcard}
			of := f.cache.WatchSet(k, &watcher{})
			k.Scope.New = true
			ofNew := f.cache.WatchSet(k, &watcher{})
			f.step()
			f.sink.Apply(cache.Update{Scope: f.scope, TypeURL: other, Sets: []cache.SetUpdate{{Name: cache.Wildcard, Extent: cache.WholeIf(full), Changes: []cache.Change{
				{Name: "one", Resource: resourceOf("one", "2")}, {Name: "two", Resource: resourceOf("two", "2")},
			}}}})
			f.step()
			member := func(s *cache.Set, name string) func() string {
				return func() string { return membersOf(s, f.cache)[name] }
			}
			f.want("accepted", member(of, "one"), "1")
			f.want("accepted", member(of, "two"), "2")
			f.want("new", member(ofNew, "one"), "2")
			if status, _ := of.Status(); status != cache.Present {
				f.Fatalf("the set has no answer")
			}
			f.gate.controller.Approve(Which{})
			f.step()
			f.want("when it is accepted", member(of, "one"), "2")
		})
	}
}

// rejectB makes a first client reject b.
func (f *onTopics) rejectB() {
	f.each(func(m *Member, showing uint64) {
		m.Sent(showing)
		m.Rejected(showing, "no", chain.Rejecters{}, []uint64{resourceOf("b", "b2").Hash()})
	})
	f.step()
}
