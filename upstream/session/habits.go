package session

import "time"

// How a control plane answers, as far as that says whether a first answer in delta is whole.
//
// A delta control plane that cuts its first answer to a wildcard into several responses does
// not say which is the last. Clients that resume would be sent the removal of what comes later,
// and SotW clients would get a half of the world. So an answer that may have been cut is not
// taken for whole until a smaller response comes, or nothing for a while. Known are:
//
//   - go-control-plane, and what is made of it (Envoy Gateway, Contour, Kuma), and Istio
//     answer in one response, whatever its size;
//   - what cuts (Diderot, this relay) does it by size, so that a response stays below a
//     limit: what gRPC clients read by default, 4 MiB, or somewhat less. It fills a response
//     until the next resource does not fit. So what was cut is within a resource of the limit;
//   - the parts of an answer follow each other as fast as they are made and sent: none takes
//     much longer than the first;
//   - nothing else says so: an answer to another request, or of another type, may come between
//     two parts of this one, and a later request is answered whether or not all was sent.

const (
	// largeResponse is below any limit that is known, and aboveAll near enough to all of them
	// that the limit could be anything. Between them a response was likely not cut, unless
	// there is a number nearby that people choose as a limit: a multiple of one of limitUnits.
	largeResponse = 1 << 20
	aboveAll      = largeResponse * 7 / 4
	// settleTime is how long nothing has to have come after a response that may have been
	// cut, and leastSettle after one that was likely not: or that is twice as long as it
	// took to come.
	settleTime  = time.Second
	leastSettle = 100 * time.Millisecond
)

var limitUnits = [...]int{256 << 10, 250_000}

// Habits are those of one control plane, over all of its streams: what it has been seen to do
// is not waited for again. The zero value knows nothing.
type Habits struct {
	// guard is nil if there is one stream only. It comes last in the order of locks.
	guard Locker
	// whole is the size of the largest first answer after which nothing came.
	whole int
	// cuts: a first answer was in several responses, or it may be that it was.
	cuts bool
	// pause is the longest time between two parts of a first answer, and seen says that one
	// was complete. See grace.go.
	pause time.Duration
	seen  bool
}

// Locker is a lock that several streams share.
type Locker interface {
	Lock()
	Unlock()
}

// NewHabits returns the habits of a control plane of which nothing is known, for several streams.
func NewHabits(guard Locker) *Habits { return &Habits{guard: guard} }

// lock locks the habits, and returns what unlocks them.
func (h *Habits) lock() (unlock func()) {
	if h.guard == nil {
		return func() {}
	}
	h.guard.Lock()
	return h.guard.Unlock
}

// grace returns how long nothing has to have come until a first answer counts as complete.
func (h *Habits) grace() time.Duration {
	defer h.lock()()
	least := graceTime
	if !h.seen {
		least = unknownGrace
	}
	return min(max(least, 2*h.pause), mostGrace)
}

// paused notes the time between two parts of a first answer.
func (h *Habits) paused(d time.Duration) {
	defer h.lock()()
	h.pause = max(h.pause, d)
}

// completed notes that a first answer was complete.
func (h *Habits) completed() {
	defer h.lock()()
	h.seen = true
}

// wait returns how long nothing has to have come after the first response of an answer, until
// it counts as whole. It has that size, its largest resource has largest bytes, and it took so
// long to come.
func (h *Habits) wait(size, largest int, took time.Duration) time.Duration {
	const mostNear = 64 << 10
	if size+min(2*largest, mostNear) < largeResponse {
		return 0
	}
	defer h.lock()()
	switch {
	case h.cuts:
		return settleTime
	case size <= h.whole:
		return 0
	}
	if size >= aboveAll || nearLimit(size, largest) {
		return settleTime
	}
	return min(max(2*took, leastSettle), settleTime)
}

// nearLimit says that the next resource may not have fitted, or the last one not quite.
func nearLimit(size, largest int) bool {
	const overhead = 1 << 10 // who cuts may count more, or less, than the resources
	from, to := size-largest-overhead, size+2*largest+overhead
	for _, unit := range limitUnits {
		if to/unit > (from-1)/unit {
			return true
		}
	}
	return false
}

// wasWhole notes that nothing has come after a first answer of that size.
func (h *Habits) wasWhole(size int) {
	defer h.lock()()
	h.whole = max(h.whole, size)
}

// wasCut notes that something has come soon after a first answer, and may belong to it.
func (h *Habits) wasCut() {
	defer h.lock()()
	h.cuts = true
}

// firstAnswer is what is to be seen of the first answer for a set: whether it was whole.
type firstAnswer struct {
	size  int       // of its first response; 0 if there is nothing to be seen
	until time.Time // when nothing can belong to it any more
}

// goesOn takes note of a later response of that size. Whether it belongs to the answer cannot
// be seen; but when the answer has been taken for whole, one that is much smaller than the
// first is rather an update.
func (f *firstAnswer) goesOn(now time.Time, size int, settled bool, h *Habits) {
	switch {
	case f.size == 0:
		return
	case !now.Before(f.until):
		h.wasWhole(f.size)
	case settled && size < f.size/2:
		return
	default:
		h.wasCut()
	}
	*f = firstAnswer{}
}

const (
	graceTime    = 2 * time.Second
	unknownGrace = 8 * time.Second
	// mostGrace bounds what is made of the time between two parts.
	mostGrace = 20 * time.Second
	// longestGrace bounds how long a first answer can take, as of a control plane that
	// makes resources all the time.
	longestGrace = time.Minute
	// restGrace is how long the rest of an answer is waited for whose stream has ended, if
	// the control plane says nothing of it.
	restGrace = 15 * time.Second
)
