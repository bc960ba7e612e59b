package downstream

import (
	queue "container/heap"
	"sync"
	"time"
)

// Expiries has the times when the certificates of a listener's clients expire, for clients with a stream or a waiting
// request. The zero value is ready. Its methods may be called concurrently.
type Expiries struct {
	mu   sync.Mutex
	heap expiryHeap
}

// expiry is the expiry time of one stream.
type expiry struct {
	at    time.Time
	place int // in the heap
}

// First returns the earliest time; false if there is none.
func (e *Expiries) First() (time.Time, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.heap) == 0 {
		return time.Time{}, false
	}
	return e.heap[0].at, true
}

func (e *Expiries) add(at time.Time) *expiry {
	of := &expiry{at: at}
	e.mu.Lock()
	defer e.mu.Unlock()
	queue.Push(&e.heap, of)
	return of
}

func (e *Expiries) remove(of *expiry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	queue.Remove(&e.heap, of.place)
}

// expiryHeap implements heap.Interface: the first to expire is the first.
type expiryHeap []*expiry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *expiryHeap) Push(of any) {
	e, _ := of.(*expiry)
	e.place = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	of := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return of
}
