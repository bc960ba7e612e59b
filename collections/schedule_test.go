package collections

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// moment is one round, and the answers to the requests of the round.
func (w *workWorld) moment() {
	w.resolver.runOnce(time.Now())
	for _, k := range w.unread {
		w.answer(k)
	}
	w.unread = nil
}

func (w *workWorld) listOf(name string, from, to int) *cache.Resource {
	var entries [][]byte
	for i := from; i < to; i++ {
		entries = append(entries, locatorEntry(w, long(fmt.Sprint("b/", i))))
	}
	return collection(long(name), entries...)
}

// A name of one authority is known while the long list of another is being read.
func TestALongListKeepsNobodyWaiting(t *testing.T) {
	w := newWorkWorld(t, "a:l")
	w.says[long("a:l")] = w.listOf("a:l", 0, 10*perRound)
	s := &setSub{}
	set := w.cache.WatchSet(cache.Key{Scope: cache.Scope{Derived: "view/0"}, TypeURL: clusterType, Name: cache.Wildcard}, s)
	w.moment() // requests the list
	w.moment() // begins with it
	w.says[long("c/x")], w.says[long("d/y")] = w.redirect("c/x", "d/y"), w.cluster("d/y", "one")
	e := &wanted{}
	e.entry, _ = w.cache.Watch(derivedKey(long("c/x")), e)
	const steps = 3 // the name, where it leads, and what is there
	for range steps {
		w.moment()
	}
	if is := e.entry.State().Status; is != cache.Present {
		t.Errorf("the other authority's name is %s after %d rounds", is, steps)
	}
	if is, _ := set.Status(); is != cache.Requested {
		t.Errorf("the long list is %s already, so it shows nothing", is)
	}
	w.settle()
	if is, _ := set.Status(); is != cache.Present {
		t.Errorf("the long list is %s in the end", is)
	}
}

// A member that moves from one list to another exists all the time, although the move takes
// several rounds.
func TestAMoveBetweenLongListsIsWithoutAGap(t *testing.T) {
	const n = 2 * perRound
	w := newWorkWorld(t, "a:l", "a:m")
	w.says[long("a:l")], w.says[long("a:m")] = w.listOf("a:l", 0, n), w.listOf("a:m", 0, 0)
	for i := range n {
		name := fmt.Sprint("b/", i)
		w.says[long(name)] = w.cluster(name, "one")
	}
	members := w.watch()
	w.want(members(), n)
	w.cache.Apply(cache.Update{Scope: cache.Scope{Authority: "a"}, TypeURL: collectionType, Changes: []cache.Change{
		{Name: long("a:l"), Resource: w.listOf("a:l", 0, 1)},
		{Name: long("a:m"), Resource: w.listOf("a:m", 1, n)},
	}})
	s := &setSub{}
	set := w.cache.WatchSet(cache.Key{Scope: cache.Scope{Derived: "view/0"}, TypeURL: clusterType, Name: cache.Wildcard}, s)
	set.Since(&s.SetWatch, func(cache.Member) bool { return true })
	rounds := 0
	for len(w.resolver.queues) > 0 || rounds == 0 {
		w.moment()
		rounds++
		w.want(set.Len(), n)
		set.Since(&s.SetWatch, func(m cache.Member) bool {
			if m.News == cache.Removed {
				t.Fatalf("%s has gone in round %d", short(m.Name), rounds)
			}
			return true
		})
	}
	if rounds < 2 {
		t.Errorf("it took %d rounds, so it shows nothing", rounds)
	}
}

// A resolver that is closed stops at once, and does not finish its work first.
func TestClosingEndsWhatIsBeingDone(t *testing.T) {
	w := newWorkWorld(t, "a:l")
	w.says[long("a:l")] = w.listOf("a:l", 0, 10*perRound)
	w.watch()
	w.moment()
	close(w.resolver.stop)
	w.resolver.runOnce(time.Now())
	if n := len(w.resolver.dirtyLookups); n == 0 || n > 2*perHold {
		t.Errorf("%d entries of the list are being followed, want some and not many more than %d", n, perHold)
	}
}

func TestEntriesOfAListAreLimited(t *testing.T) {
	entry := []byte{listResources<<3 | 2, 0}
	for n, want := range map[int]string{maxEntries: "", maxEntries + 1: "it has more than 100000 entries"} {
		l := parseList(cache.NewResource(cache.Spec{Name: long("a:l"), TypeURL: collectionType, Value: bytes.Repeat(entry, n)}))
		if got := len(l.entries); got != maxEntries {
			t.Errorf("%d entries of %d are read, want %d", got, n, maxEntries)
		}
		switch {
		case want == "" && l.err != nil, want != "" && (l.err == nil || !strings.Contains(l.err.Error(), want)):
			t.Errorf("of %d entries: %v, want %q", n, l.err, want)
		}
	}
}

func TestEntriesOfASetAreLimited(t *testing.T) {
	const most = 10
	w := newWorkWorld(t, "a:l", "a:m")
	w.resolver.sets.maxEntries = most
	for i := range 3 * most {
		name := fmt.Sprint("b/", i)
		w.says[long(name)] = w.cluster(name, "one")
	}
	w.says[long("a:l")], w.says[long("a:m")] = w.listOf("a:l", 0, most), w.listOf("a:m", most, most+1)
	members := w.watch()
	w.want(members(), most)
	if got := w.resolver.Failures(); got != 1 {
		t.Errorf("%d failures, want 1", got)
	}
	// What has gone does not count.
	for i := range 3 {
		w.say("a:l", w.listOf("a:l", 0, 0))
		w.say("a:m", w.listOf("a:m", 0, 0))
		w.want(members(), 0)
		w.say("a:l", w.listOf("a:l", i, i+most/2))
		w.say("a:m", w.listOf("a:m", most+i, most+i+most/2))
		w.want(members(), most)
	}
	if got := w.resolver.Failures(); got != 1 {
		t.Errorf("%d failures, want 1", got)
	}
}
