package cache

import "testing"

func TestARequestHasEndedOnceThoseBeforeItHave(t *testing.T) {
	var r Requests
	called := 0
	await := func(request uint64) (has bool) {
		r.AtEnd(request, func() { called++ })
		return r.Ended(request)
	}
	if !await(r.Last()) {
		t.Error("without any request, one has not ended")
	}
	first, second := r.Begin(), r.Begin()
	last := r.Last()
	third := r.Begin()
	if last != second {
		t.Errorf("the last is %d, want %d", last, second)
	}
	r.End(second)
	if await(last) {
		t.Error("the first goes on, and the second is said to have ended")
	}
	r.End(first)
	if called != 1 || !await(last) {
		t.Errorf("the second has not ended because a later one goes on (%d calls)", called)
	}
	if await(third) {
		t.Error("the third has ended before End")
	}
	r.End(third)
	if called != 2 || !await(third) {
		t.Errorf("the third has not ended after End (%d calls)", called)
	}
}
