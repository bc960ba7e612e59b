package session

import "time"

// How a control plane answers, as far as that shows whether a first answer in delta is complete.
//
// A delta control plane that cuts its first answer to a wildcard into several responses does
// not mark the last one. Clients that resume would get removals of members that come later,
// and SotW clients would get a part of the state. So an answer that may have been cut does not
// count as whole until a smaller response comes, or nothing for a while. What is known:
//
//   - go-control-plane, the control planes built on it (Envoy Gateway, Contour, Kuma), and Istio
//     answer in one response of any size.
//   - Control planes that cut (Diderot, this relay) do so by size, to keep a response below a
//     limit: 4 MiB, which gRPC clients read by default, or somewhat less. They fill a response
//     until the next resource does not fit. So a cut response is within one resource of the limit.
//   - The parts of an answer follow each other as fast as they are made and sent: none takes
//     much longer than the first.
//   - Nothing else marks the end for certain: an answer to another request, or of another type, may come
//     between two parts.

const (
	// largeResponse is below any limit that is known. From aboveAll on, a response may be near any
	// limit. Between the two, a response was likely not cut, unless its size is near a number
	// that people choose as a limit: a multiple of one of limitUnits.
	largeResponse = 1 << 20
	aboveAll      = largeResponse * 7 / 4
	// settleTime is how long nothing must come after a response that may have been
	// cut. After one that was likely not cut, it is twice as long as the response took to come, at
	// least leastSettle and at most settleTime.
	settleTime  = time.Second
	leastSettle = 100 * time.Millisecond
)

var limitUnits = [...]int{256 << 10, 250_000}

// Habits are what is known of one control plane's first answers. All of its streams share them, so that
// the relay waits less for what it has seen before. The zero value knows nothing.
type Habits struct {
	// guard is nil if there is one stream only. It comes last in the order of locks.
	guard Locker
	// whole is the size of the largest first answer after which nothing came.
	whole int
	// cuts: a first answer was in several responses, or may have been.
	cuts bool
	// lenient: in SotW, it has answered a request of names that it does not have. See strict.go.
	lenient bool
	// reads: in delta, it has read initial_resource_versions. See forgetful.go.
	reads bool
	// pause is the longest time between two parts of a first answer. See grace.go.
	pause time.Duration
}

// Locker is a lock that several streams share.
type Locker interface {
	Lock()
	Unlock()
}

// NewHabits returns the habits of an unknown control plane, for several streams.
func NewHabits(guard Locker) *Habits { return &Habits{guard: guard} }

// lock locks the habits, and returns what unlocks them.
func (h *Habits) lock() (unlock func()) {
	if h.guard == nil {
		return func() {}
	}
	h.guard.Lock()
	return h.guard.Unlock
}

// grace returns how long nothing must come before a first answer counts as complete.
func (h *Habits) grace() time.Duration {
	defer h.lock()()
	return min(max(graceTime, 2*h.pause), mostGrace)
}

// moment returns the same for an answer that was overtaken by that of a later request. took is how long
// its parts took to come.
func (h *Habits) moment(took time.Duration) time.Duration {
	defer h.lock()()
	return min(max(leastSettle, 2*took, 2*h.pause), max(graceTime, 2*h.pause), mostGrace)
}

// paused notes the time between two parts of a first answer.
func (h *Habits) paused(d time.Duration) {
	defer h.lock()()
	h.pause = max(h.pause, d)
}

// wait returns how long nothing must come after the first response of an answer before the answer
// counts as whole. size is that of the response, largest that of its largest resource, in bytes; took is
// how long the response took to come.
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

// nearLimit reports whether the size of a response is so near a limit that another resource may not have
// fitted.
func nearLimit(size, largest int) bool {
	const overhead = 1 << 10 // control planes may count more, or less, than the resources
	from, to := size-largest-overhead, size+2*largest+overhead
	for _, unit := range limitUnits {
		if to/unit > (from-1)/unit {
			return true
		}
	}
	return false
}

// wasWhole notes that nothing came after a first answer of that size.
func (h *Habits) wasWhole(size int) {
	defer h.lock()()
	h.whole = max(h.whole, size)
}

// wasCut notes that a response came soon after a first answer, and may belong to it.
func (h *Habits) wasCut() {
	defer h.lock()()
	h.cuts = true
}

// readList notes that the control plane has read initial_resource_versions, and readsList reports whether it has.
func (h *Habits) readList() {
	defer h.lock()()
	h.reads = true
}

func (h *Habits) readsList() bool {
	defer h.lock()()
	return h.reads
}

// firstAnswer observes the first answer for a set, to learn whether it was whole.
type firstAnswer struct {
	size  int       // of its first response; 0 if nothing is observed
	until time.Time // when nothing can belong to it any more
}

// goesOn records a later response of that size. It is not known whether the response belongs to the
// answer. But if the answer has settled, a response that is much smaller than the first is
// rather an update.
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
	graceTime = 2 * time.Second
	// mostGrace bounds the grace that follows from the time between two parts.
	mostGrace = 20 * time.Second
	// longestGrace bounds how long a first answer can take: a control plane may
	// make new resources all the time.
	longestGrace = time.Minute
	// restGrace is how long a set waits on a new stream for the rest of an answer whose stream has
	// ended, if nothing comes.
	restGrace = 15 * time.Second
)
