package cache

import "testing"

func TestARequestHasEndedOnceThoseBeforeItHave(t *testing.T) {
	var r Requests
	if !r.Ended(r.Last()) {
		t.Error("without any request, one has not ended")
	}
	first, second := r.Begin(), r.Begin()
	last := r.Last()
	third := r.Begin()
	if last != second {
		t.Errorf("the last is %d, want %d", last, second)
	}
	r.End(second)
	if r.Ended(last) {
		t.Error("the first goes on, and the second is said to have ended")
	}
	r.End(first)
	if !r.Ended(last) {
		t.Error("the second has not ended because a later one goes on")
	}
	if r.Ended(third) {
		t.Error("the third has ended before End")
	}
	r.End(third)
	if !r.Ended(third) {
		t.Error("the third has not ended after End")
	}
}
