package cache

import (
	"slices"
	"sync"
)

// Requests are the client requests of which the names are being watched. A [Source] is asked for
// them name by name, and so does not know where a request ends. With Requests it waits for the
// end, and asks its server for all of them at once.
//
// Its methods may be called concurrently, and do not block.
type Requests struct {
	mu   sync.Mutex
	last uint64
	open []uint64 // ascending
	// awaiting are those that are called at an end.
	awaiting []awaiting
}

type awaiting struct {
	request uint64
	ended   func()
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
	for _, w := range r.end(request) {
		w.ended()
	}
}

func (r *Requests) end(request uint64) (ended []awaiting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.open, request); i >= 0 {
		r.open = slices.Delete(r.open, i, i+1)
	}
	r.awaiting = slices.DeleteFunc(r.awaiting, func(w awaiting) bool {
		if !r.ended(w.request) {
			return false
		}
		ended = append(ended, w)
		return true
	})
	return ended
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
	return r.ended(request)
}

// AtEnd has ended called once Ended is true of a request; not if it is already. ended must not block.
func (r *Requests) AtEnd(request uint64, ended func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended(request) {
		r.awaiting = append(r.awaiting, awaiting{request, ended})
	}
}

// ended is Ended. The caller holds mu.
func (r *Requests) ended(request uint64) bool { return len(r.open) == 0 || r.open[0] > request }
