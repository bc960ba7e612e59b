package downstream

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Those who wait for a place take turns by identity: however many calls of one wait, another one waits for one of them.
func TestPlacesAreTakenInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPlaces(1, 0, 0)
		first, err := p.take(t.Context(), proven("many", nil)(), nil)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan string)
		wait := func(id string) {
			go func() {
				place, err := p.take(t.Context(), proven(id, nil)(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				served <- id
				place.Give()
			}()
			synctest.Wait()
		}
		for range 5 {
			wait("many")
		}
		wait("one")
		wait("two")
		gone, leave := context.WithCancel(t.Context())
		go func() {
			if _, err := p.take(gone, proven("gone", nil)(), nil); status.Code(err) != codes.Canceled {
				t.Errorf("a call whose client has gone got %v", err)
			}
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		first.Give()
		first.Give() // has no effect
		var order []string
		for range 7 {
			order = append(order, <-served)
		}
		if want := []string{"many", "one", "two", "many", "many", "many", "many"}; !slices.Equal(order, want) {
			t.Errorf("the places went to %q, want %q", order, want)
		}
		synctest.Wait()
		if p.taken != 0 || p.holders.Len() != 0 || p.line.waiting() != 0 || p.next != nil {
			t.Errorf("%d places are taken, and %d calls wait", p.taken, p.line.waiting())
		}
	})
}

// An identity has no more than its places, and the calls of others do not wait for it.
func TestAnIdentityHasOnlySomePlaces(t *testing.T) {
	p := NewPlaces(4, 2, 0)
	var places []*Place
	for i := range 2 {
		for _, id := range []string{"a", "b"} {
			place, err := p.take(t.Context(), proven(id, nil)(), nil)
			if err != nil {
				t.Fatalf("place %d of %s: %v", i, id, err)
			}
			places = append(places, place)
		}
	}
	if _, err := p.take(t.Context(), proven("a", nil)(), nil); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a third place: %v", err)
	}
	places[0].Give()
	if _, err := p.take(t.Context(), proven("a", nil)(), nil); err != nil {
		t.Errorf("a place after another was given back: %v", err)
	}
}

// Who keeps a place for long loses it to those who wait, the longest first, if it can; otherwise these are refused.
func TestSlowOnesLoseTheirPlaces(t *testing.T) {
	const patience = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		p := NewPlaces(2, 0, patience)
		var lost []string
		hold := func(id string) *Place {
			t.Helper()
			place, err := p.take(t.Context(), proven(id, nil)(), func(err error) {
				if status.Code(err) != codes.ResourceExhausted {
					t.Errorf("%s loses its place with %v", id, err)
				}
				lost = append(lost, id)
			})
			if err != nil {
				t.Fatal(err)
			}
			return place
		}
		slow := hold("slow")
		time.Sleep(time.Hour)
		hold("busy")
		if len(lost) > 0 {
			t.Errorf("%q lost places that nobody waits for", lost)
		}
		began := time.Now()
		third := hold("third")
		synctest.Wait()
		if took := time.Since(began); took != patience || !slices.Equal(lost, []string{"slow"}) {
			t.Errorf("the third waited for %v, and %q lost places", took, lost)
		}
		slow.Give() // has no effect
		if p.taken != 2 {
			t.Errorf("%d places are taken", p.taken)
		}
		hold("fourth")
		synctest.Wait()
		if !slices.Equal(lost, []string{"slow", "busy"}) {
			t.Errorf("%q lost places", lost)
		}
		third.Give()
		if p.taken != 1 {
			t.Errorf("%d places are taken", p.taken)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := NewPlaces(1, 1, patience)
		if _, err := p.take(t.Context(), proven("slow", nil)(), nil); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := p.take(t.Context(), proven("other", nil)(), nil); !errors.Is(err, errBusy) {
				t.Errorf("got %v, want that calls are being answered", err)
			}
		}
		if len(p.callers) != 1 {
			t.Errorf("callers are %v", p.callers)
		}
	})
}

// Work of different sizes has as much room as there are places: a large one waits until it fits, and those behind it wait
// for their turns; one that is larger than all places has them alone.
func TestPlacesHaveSizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPlaces(10, 0, 0)
		served := make(chan string, 5)
		take := func(id string, size int64) *Place {
			place, err := p.takeSize(t.Context(), proven(id, nil)(), size, nil)
			if err != nil {
				t.Error(err)
			}
			served <- id
			return place
		}
		first, second := take("first", 4), take("second", 4)
		places := make(chan *Place, 5)
		for _, id := range []string{"huge", "large", "small"} {
			size := map[string]int64{"huge": 100, "large": 6, "small": 2}[id]
			go func() { places <- take(id, size) }()
			synctest.Wait()
		}
		var got []string
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			for len(served) > 0 {
				got = append(got, <-served)
			}
			if !slices.Equal(got, want) {
				t.Errorf("served are %q, want %q", got, want)
			}
		}
		expect("first", "second")
		first.Give()
		expect("first", "second")
		second.Give()
		expect("first", "second", "huge")
		(<-places).Give()
		synctest.Wait()
		(<-places).Give()
		(<-places).Give()
		synctest.Wait()
		for len(served) > 0 {
			got = append(got, <-served)
		}
		if len(got) != 5 {
			t.Errorf("served are %q", got)
		}
		if p.taken != 0 || len(p.sizes) != 0 || p.next != nil {
			t.Errorf("%d places are taken", p.taken)
		}
	})
}
