package pagetest

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// The page of propagation shows how long a change took to reach clients, in a table from which the charts are drawn.
func TestThePageSaysHowLongChangesTook(t *testing.T) {
	w, b := startBroken(t)
	w.Change(t)
	var s operator.PropagationStatus
	path := "/propagation?authority=" + brokenworld.Shop + "&type=listener"
	await(t, "all clients have the change", func() error {
		answer, text := b.get("/api"+path, "application/json")
		if answer.StatusCode != 200 {
			return fmt.Errorf("status %d: %s", answer.StatusCode, text)
		}
		if b.document("/api"+path, &s); s.Shown.ACKed.Last == 0 {
			return fmt.Errorf("the last client has not acknowledged it: %+v", s)
		}
		return nil
	})
	k := s.Shown
	if k.Authority != brokenworld.Shop || k.Type != "listener" || k.RolledOut || k.Changes != 1 || k.NotACKed != 0 {
		t.Errorf("it is about %+v", k)
	}
	if k.Sent.First > k.Sent.Median || k.Sent.Median > k.Sent.Last || k.Sent.Last > k.ACKed.Last || k.Sent.First <= 0 || k.ACKed.Last > 60 {
		t.Errorf("the times are %+v", k)
	}
	if n := len(s.Times); n != 1 || s.Times[0].Changes != 1 || s.Steps*s.Step != 3600 || s.Until.Unix()%int64(s.Step) != 0 {
		t.Errorf("there are %d steps, of %+v", n, s)
	}
	root, text := b.page("/ui" + path)
	cells := 0
	each(root, func(n *html.Node) {
		if of, is := attribute(n, "data-of"); is && n.Data == "td" {
			if _, has := attribute(n, "data-seconds"); !has {
				t.Errorf("the cell of %s has no value", of)
			}
			cells++
		}
	})
	if cells != 6 || !strings.Contains(text, "uPlot") {
		t.Errorf("the table has %d values, want 6:\n%s", cells, text)
	}
	if answer, _ := b.get("/ui/propagation?authority=nobody&type=cluster", "text/html"); answer.StatusCode != 404 {
		t.Errorf("an unknown authority has status %d", answer.StatusCode)
	}
}
