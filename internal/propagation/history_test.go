package propagation

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// describe returns a history as a text: for each Period its beginning, the changes, and the times of the first, the
// median and the last client.
func describe(t *Tracker, began time.Time) (all []string) {
	for _, p := range t.History(Kind{Authority: "a", Type: "type"}) {
		text := fmt.Sprintf("+%s: %d", p.Begins.Sub(began), p.Changes)
		for _, s := range []Stage{Sent, ACKed} {
			text += fmt.Sprintf(", %s %s %s %s", s, p.Longest(s, First), p.Longest(s, Median), p.Longest(s, Last))
			if n := p.Missed(s); n > 0 {
				text += fmt.Sprintf(" without %d", n)
			}
		}
		all = append(all, text)
	}
	return all
}

// A history has the longest times of each step, under the step in which a change was opened.
func TestAHistoryHasTheLongestTimesOfEachStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, _ := newTestTracker()
		began := periodOf(time.Now())
		change := func(sent, acked time.Duration) {
			clients := newClients(3)
			begin(tracker, clients)
			var lists []*List
			for _, c := range clients {
				time.Sleep(sent)
				lists = append(lists, c.Take())
				lists[len(lists)-1].Sent()
			}
			for _, l := range lists {
				time.Sleep(acked)
				l.ACKed()
			}
		}
		change(time.Second, time.Millisecond)
		change(time.Millisecond, time.Second)
		time.Sleep(time.Until(began.Add(3*Step - time.Millisecond)))
		change(time.Second, time.Second) // it ends in the next step
		silent := newClients(2)
		begin(tracker, silent)
		silent[0].Take().Sent()
		time.Sleep(Limit)
		synctest.Wait() // what is given up then
		want := []string{
			"+0s: 2, sent 1s 2s 3s, acked 3.001s 3.002s 3.003s",
			"+1m0s: 1, sent 1s 2s 3s, acked 4s 5s 6s",
			"+1m30s: 1, sent 1ns 1ns 0s without 1, acked 0s 0s 0s without 2",
		}
		if got := describe(tracker, began); !slices.Equal(got, want) {
			t.Errorf("the history is\n%q\nwant\n%q", got, want)
		}
	})
}

// A history ends after an hour, whether there are changes or not, and few Kinds have one.
func TestAHistoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, _ := newTestTracker()
		open := func(authority string) {
			c := tracker.Begin(&Receipt{At: time.Now()}, authority, "type")
			o := new(Owed)
			o.Add(c)
			c.Open()
			l := o.Take()
			l.Sent()
			l.ACKed()
		}
		const steps = int(Kept / Step)
		for range 3 * steps {
			open("a")
			time.Sleep(Step)
		}
		of := Kind{Authority: "a", Type: "type"}
		if n, kept := len(tracker.History(of)), len(tracker.lines[of].history.periods); n != steps-1 || kept != steps {
			t.Errorf("the history shows %d steps and has %d, want %d and %d", n, kept, steps-1, steps)
		}
		time.Sleep(Kept)
		if n := len(tracker.History(of)); n != 0 {
			t.Errorf("after an hour without changes the history has %d steps", n)
		}
		for i := range maxHistories + 9 {
			open(fmt.Sprintf("b%d", i))
		}
		if kinds, without := tracker.Kinds(); len(kinds) != maxHistories || without != 10 {
			t.Errorf("%d Kinds have a history and %d have none, want %d and 10", len(kinds), without, maxHistories)
		}
		if got := tracker.History(Kind{Authority: "unknown"}); got != nil {
			t.Errorf("an unknown Kind has the history %v", got)
		}
	})
}
