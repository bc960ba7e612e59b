package cache

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

// The memory that a member of a large set needs in addition to the resource's bytes, also after
// changes in random order, which leave free records. (upstream/session/ counts all of the relay's
// memory.)
func TestMemberOfASetCostsFewBytes(t *testing.T) {
	const members = 20_000
	// 32 of a Resource, 16 of its record and 6 of the index; and of the records up to as
	// many free ones.
	const most, mostAfterwards = 57, 73
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	c, s, _ := newWatchedSet(t)
	bytes := 0
	apply := func(i int, content string) {
		name := fmt.Sprintf("member-%06d", i)
		r := NewResource(Spec{Name: name, Version: "1", TypeURL: testType, Value: message(name, content)})
		bytes += cap(r.AppendBytes(nil, true)) // as the allocator rounds it
		c.Apply(setUpdate(SetUpdate{Changes: []Change{{Name: strings.Clone(name), Resource: r}}}))
	}
	apply(members, "x0")
	before := heap()
	bytes = 0
	check := func(when string, most int) {
		t.Helper()
		per := float64(heap()-before-bytes) / members
		t.Logf("%s: %.1f bytes for a member", when, per)
		if per > float64(most) || s.Len() != members+1 {
			t.Errorf("%s: %.1f bytes for each of %d members, want at most %d", when, per, s.Len(), most)
		}
	}
	for i := range members {
		apply(i, "x0")
	}
	check("once", most)
	all := bytes
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 3 * members {
		apply(random.IntN(members), "y"+fmt.Sprint(n%2))
	}
	bytes = all // all are as long as they were
	check("after changes", mostAfterwards)
}
