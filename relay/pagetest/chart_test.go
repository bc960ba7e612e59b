package pagetest

import (
	"log/slog"
	"math"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/admin/page"
	"github.com/xds-relay/xds-relay/operator"
)

// anHour returns a page's content with an hour of changes, as a fleet of some thousand clients would cause.
func anHour() *operator.PropagationStatus {
	until := time.Now().Truncate(30 * time.Second).Add(30 * time.Second)
	s := &operator.PropagationStatus{Until: until, Step: 30, Steps: 120}
	k := operator.PropagationKind{Authority: "shop.example.com", Type: "cluster"}
	for i := range 120 {
		if i%20 > 16 {
			continue // there are half minutes without a change
		}
		base := 0.004 + 0.002*math.Sin(float64(i)/7)
		if i == 73 || i == 74 {
			base *= 14
		}
		t := operator.PropagationTimes{Changes: 1 + i%4, Sent: operator.ClientTimes{First: base / 9, Median: base, Last: 3 * base}, ACKed: operator.ClientTimes{First: base / 4, Median: 2 * base, Last: 6 * base}}
		s.Times = append(s.Times, operator.PropagationStep{At: until.Add(time.Duration(i-120) * 30 * time.Second), PropagationTimes: t})
		k.Changes += t.Changes
		k.Sent.Last, k.ACKed.Last = max(k.Sent.Last, t.Sent.Last), max(k.ACKed.Last, t.ACKed.Last)
	}
	other := operator.PropagationKind{Authority: "shop.example.com", Type: "route", RolledOut: true, PropagationTimes: operator.PropagationTimes{Changes: 2, Sent: operator.ClientTimes{Last: 61.2}, ACKed: operator.ClientTimes{Last: 61.3}, NotACKed: 3}}
	s.Kinds = []operator.PropagationKind{k, other}
	s.Shown = &s.Kinds[0]
	return s
}

// The charts show the table's numbers, follow its changes, and fit on a phone.
func TestInABrowserChartsDrawTheirTable(t *testing.T) {
	needBrowser(t)
	s := anHour()
	metrics, err := admin.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	server := admin.New(metrics)
	page.Register(server, []page.View{{Name: "propagation", Title: "Propagation", Read: func(url.Values) (any, error) { return s, nil }}}, []string{"propagation"})
	front := httptest.NewServer(server.HTTP(slog.New(slog.DiscardHandler), nil).Handler)
	t.Cleanup(front.Close)
	at, err := url.Parse(front.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := openChromium(t, at.Host)
	c.window(1100, 1000, false)
	c.open("/ui/propagation")
	c.await("both charts are drawn", `document.querySelectorAll(".chart canvas").length === 2`)
	if picture := c.screenshot("page-propagation"); colours(picture) < 8 {
		t.Error("the page looks empty")
	}
	// The legend shows the table's numbers at the cursor.
	var want, got []string
	read := func(into *[]string, expression string) {
		t.Helper()
		if err := c.evaluate(expression, into); err != nil {
			t.Fatal(err)
		}
	}
	read(&want, `(() => { const r = document.querySelector("#times tbody tr"); return [r.querySelector("time").textContent, ...[...r.querySelectorAll("[data-of^=sent]")].map((e) => e.textContent)] })()`)
	read(&got, `(() => { const o = document.querySelector("#sent-chart .u-over"), r = o.getBoundingClientRect();
		const last = document.querySelector("#times").dataset, x = (+document.querySelector("#times tbody tr").dataset.at - (last.until - last.steps * last.step)) / (last.steps * last.step) * r.width;
		o.dispatchEvent(new MouseEvent("mouseenter", { clientX: r.x + x, clientY: r.y + 20 }));
		o.dispatchEvent(new MouseEvent("mousemove", { clientX: r.x + x, clientY: r.y + 20 }));
		return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done([...document.querySelectorAll("#sent-chart .u-value")].map((e) => e.textContent))))) })()`)
	if len(got) != 4 || len(want) != 4 {
		t.Fatalf("the legend has %q, and the table %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("the legend has %q, and the table %q", got, want)
			break
		}
	}
	c.window(412, 900, true)
	c.await("the charts fit", `[...document.querySelectorAll(".chart canvas")].every((e) => e.getBoundingClientRect().right <= 412)`)
	c.narrow("/ui/propagation")
	c.dark(true)
	if dark := c.screenshot("page-propagation-phone"); brightness(ground(dark)) > 60 {
		t.Error("the page is not dark")
	}
}
