package session

import "runtime"

// A large response, or a set with very many members, is much work for the goroutine that receives. Meanwhile
// all others share the remaining processors, and the garbage collector takes most of these. So between two parts
// of the work it lets all run that can: what other control planes send does not wait for the whole of it. In a small
// response there are no such parts, so reading still has priority over sending.

// yieldEvery is after how many resources of a response, or members of a set, others may run; yieldEveryTaste is
// that for resources that are looked at, which takes longer, and yieldEveryComparison that for comparisons.
const (
	yieldEvery           = 1 << 10
	yieldEveryTaste      = 1 << 7
	yieldEveryComparison = 1 << 13
)

// yield lets others run after each part of the work, of which n steps were done before.
func yield(n, every int) {
	if n > 0 && n%every == 0 {
		runtime.Gosched()
	}
}
