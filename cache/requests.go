package cache

import "sync"

// Requests are the client requests of which the names are being watched. A [Source] is asked for
// them name by name, and so does not know where a request ends. With Requests it waits for the
// end, and asks its server for all of them at once.
//
// Its methods may be called concurrently, and do not block.
type Requests struct {
	mu   sync.Mutex
	last uint64
	open []uint64 // ascending
}

// Begin is called before the first name of a request is watched. End takes what it returns.
func (r *Requests) Begin() (request uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.open = append(r.open, r.last)
	return r.last
}

// End is called when the last name of a request is watched.
func (r *Requests) End(request uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, open := range r.open {
		if open == request {
			r.open = append(r.open[:i], r.open[i+1:]...)
			return
		}
	}
}

// Last returns the request that began last.
func (r *Requests) Last() (request uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// Ended reports whether a request has ended, and all that began before it. Requests that began
// later do not delay that.
func (r *Requests) Ended(request uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.open) == 0 || r.open[0] > request
}
