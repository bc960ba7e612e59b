package session

import "runtime"

// A large response, or a set with very many members, keeps the goroutine that receives it busy for long. Meanwhile all
// other goroutines share the remaining processors, and the garbage collector takes most of these. So the goroutine yields
// between parts of the work, and the updates of other control planes do not wait for the whole response. A small response
// has only one part, so that reading has priority over sending.

// A goroutine yields after yieldEvery resources of a response or members of a set, after yieldEveryTaste resources that the
// taster decodes, after yieldEveryBytes of resources that are decoded, copied or compared, and after yieldEveryComparison
// comparisons of members.
const (
	yieldEvery           = 1 << 10
	yieldEveryTaste      = 1 << 7
	yieldEveryBytes      = 1 << 18
	yieldEveryComparison = 1 << 13
)

// yield lets other goroutines run if n, the number of steps done so far, is a multiple of every.
func yield(n, every int) {
	if n > 0 && n%every == 0 {
		runtime.Gosched()
	}
}

// parts divides work on resources into parts that have at most every resources, and no more than yieldEveryBytes unless
// one resource has.
type parts struct {
	every    int
	n, bytes int // of the present part
}

// next adds a resource of that many bytes, and reports whether it begins another part.
func (p *parts) next(bytes int) (another bool) {
	if another = p.n == p.every || p.n > 0 && p.bytes+bytes > yieldEveryBytes; another {
		p.n, p.bytes = 0, 0
	}
	p.n++
	p.bytes += bytes
	return another
}

// begin is next, and lets other goroutines run before another part.
func (p *parts) begin(bytes int) {
	if p.next(bytes) {
		runtime.Gosched()
	}
}
