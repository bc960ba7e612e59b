package collections

import (
	"container/heap"
	"time"
)

// set schedules an evaluation of f, or with the zero time none.
func (d *lookupTimers) set(f *lookup, at time.Time) {
	f.dueAt = at
	switch at, i := f.heapIndex > 0, f.heapIndex-1; {
	case f.dueAt.IsZero() && at:
		heap.Remove(d, i)
	case f.dueAt.IsZero():
	case at:
		heap.Fix(d, i)
	default:
		heap.Push(d, f)
	}
}

// take removes and returns a lookup whose time has come, nil if there is none.
func (d *lookupTimers) take(now time.Time) *lookup {
	if len(*d) == 0 || (*d)[0].dueAt.After(now) {
		return nil
	}
	f := (*d)[0]
	d.set(f, time.Time{})
	return f
}

// Len implements heap.Interface.
func (d lookupTimers) Len() int { return len(d) }

// Less implements heap.Interface.
func (d lookupTimers) Less(i, j int) bool { return d[i].dueAt.Before(d[j].dueAt) }

// Swap implements heap.Interface.
func (d lookupTimers) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].heapIndex, d[j].heapIndex = i+1, j+1
}

// Push implements heap.Interface.
func (d *lookupTimers) Push(f any) {
	*d = append(*d, f.(*lookup))
	(*d)[len(*d)-1].heapIndex = len(*d)
}

// Pop implements heap.Interface.
func (d *lookupTimers) Pop() any {
	last := len(*d) - 1
	f := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	f.heapIndex = 0
	return f
}
