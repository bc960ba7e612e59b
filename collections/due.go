package collections

import (
	"container/heap"
	"time"
)

// due are the follows that are to be evaluated again at some time: the next one
// first. The work for one does not grow much with their number, since a whole
// authority's may wait for the same grace to end.
type due []*follow

// set has f evaluated again at that time, zero for never.
func (d *due) set(f *follow, at time.Time) {
	f.dueAt = at
	switch at, i := f.place > 0, f.place-1; {
	case f.dueAt.IsZero() && at:
		heap.Remove(d, i)
	case f.dueAt.IsZero():
	case at:
		heap.Fix(d, i)
	default:
		heap.Push(d, f)
	}
}

// take removes one whose time has come, nil if there is none.
func (d *due) take(now time.Time) *follow {
	if len(*d) == 0 || (*d)[0].dueAt.After(now) {
		return nil
	}
	f := (*d)[0]
	d.set(f, time.Time{})
	return f
}

// Len implements heap.Interface.
func (d due) Len() int { return len(d) }

// Less implements heap.Interface.
func (d due) Less(i, j int) bool { return d[i].dueAt.Before(d[j].dueAt) }

// Swap implements heap.Interface.
func (d due) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i+1, j+1
}

// Push implements heap.Interface.
func (d *due) Push(f any) {
	*d = append(*d, f.(*follow))
	(*d)[len(*d)-1].place = len(*d)
}

// Pop implements heap.Interface.
func (d *due) Pop() any {
	last := len(*d) - 1
	f := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	f.place = 0
	return f
}
