package downstream

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// An iteration over all streams gets each that was open all the time once, oldest first, whatever ends and begins
// in the meantime.
func TestStreamsComeOnceInTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Server{}
		var open []*stream
		add := func() {
			s.lastID++
			st := &stream{id: s.lastID}
			s.streams.add(st)
			open = append(open, st)
		}
		for range rapid.IntRange(0, 3*streamPiece+1).Draw(t, "streams") {
			add()
		}
		after := uint64(rapid.IntRange(0, len(open)+1).Draw(t, "after")) //nolint:gosec // it is small
		newest := s.lastID
		ended := map[*stream]bool{}
		var got []uint64
		for st := range s.streamsAfter(after) {
			got = append(got, st.id)
			if rapid.IntRange(0, 9).Draw(t, "what happens") == 0 {
				add()
			}
			for rapid.IntRange(0, 4).Draw(t, "does one end") == 0 {
				// The one that was yielded is the likeliest, and with it the end of a piece.
				one := st
				if rapid.Bool().Draw(t, "another") {
					one = rapid.SampledFrom(open).Draw(t, "which")
				}
				if !ended[one] {
					s.streams.remove(one)
					ended[one] = true
				}
			}
		}
		var want []uint64
		for _, st := range open {
			if st.id > after && st.id <= newest && (!ended[st] || slices.Contains(got, st.id)) {
				want = append(want, st.id)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}
