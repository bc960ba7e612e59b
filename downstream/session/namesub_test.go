package session

import (
	"slices"
	"testing"
)

// The list of pending names may be reused for another client, so nothing may be left behind its end.
func TestNamesThatAreNotPendingAnyMoreAreLetGo(t *testing.T) {
	s := &subscriptions{}
	for range 5 {
		s.pending = append(s.pending, &nameSub{})
	}
	all, last := s.pending, s.pending[4]
	s.takePending(func(sub *nameSub) bool { return sub != last })
	if want := []*nameSub{last, nil, nil, nil, nil}; !slices.Equal(all, want) || len(s.pending) != 1 {
		t.Errorf("the list has %v, of which %v are pending; want %v", all, s.pending, want)
	}
}
