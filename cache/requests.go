package cache

import (
	"slices"
	"sync"
)

// Requests tracks the client requests whose names are being watched, one name after another. The
// cache starts a [Source] name by name, so the source does not know where a request ends. With
// Requests, the source waits for the end, and requests all of the names from its server at once.
//
// Its methods may be called concurrently, and do not block.
type Requests struct {
	mu   sync.Mutex
	last uint64
	open []uint64 // ascending
	// awaiting are the pending calls of AtEnd.
	awaiting []awaiting
}

type awaiting struct {
	request uint64
	ended   func()
}

// Begin is called before the first name of a request is watched. It returns the request's number, for
// End.
func (r *Requests) Begin() (request uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.open = append(r.open, r.last)
	return r.last
}

// End is called after the last name of a request is watched.
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

// Last returns the number of the request that began last.
func (r *Requests) Last() (request uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// Ended reports whether a request and all requests that began before it have ended. Requests that began
// later do not matter.
func (r *Requests) Ended(request uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended(request)
}

// AtEnd calls ended once, when Ended becomes true for a request. It never calls it if Ended is true
// already. ended must not block.
func (r *Requests) AtEnd(request uint64, ended func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended(request) {
		r.awaiting = append(r.awaiting, awaiting{request, ended})
	}
}

// ended is Ended for callers that hold mu.
func (r *Requests) ended(request uint64) bool { return len(r.open) == 0 || r.open[0] > request }
