package pagetest

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// awaitChange waits until the relay has kept a change, and returns it.
func (b *browser) awaitChange(t *testing.T, query url.Values, is func(*operator.ChangeEntry) bool) (found operator.ChangeEntry) {
	t.Helper()
	await(t, "the change is kept", func() error {
		var l operator.ChangeList
		b.document("/api/changes?"+query.Encode(), &l)
		for i := range l.Changes {
			if is(&l.Changes[i]) {
				found = l.Changes[i]
				return nil
			}
		}
		return fmt.Errorf("there are %+v", l.Changes)
	})
	return found
}

// The page has what has changed, and the document of each resource says when it changed.
func TestThePageSaysWhatHasChanged(t *testing.T) {
	w, b := startBroken(t)
	var before, after operator.ResourceStatus
	path := "/api/resource?authority=" + brokenworld.Shop + "&type=listener&name=web"
	b.document(path, &before)
	w.Change(t)
	e := b.awaitChange(t, url.Values{"type": {"listener"}, "name": {"web"}, "differences": {"true"}}, func(e *operator.ChangeEntry) bool {
		return e.Changed == 1 && e.Clients != nil && e.Clients.LastACKed != nil
	})
	if r := e.Resources; len(r) != 1 || !strings.Contains(r[0].Difference, "+      port_value: 9443") || r[0].Old == r[0].New {
		t.Errorf("the change is %+v", e)
	}
	if c := e.Clients; c.Sent != c.Clients || c.ACKed != c.Clients || c.NACKed != 0 || c.LastACKed.Before(e.At.Add(-1e9)) {
		t.Errorf("the clients are %+v", c)
	}
	if b.document(path, &after); before.ChangedAt == nil || after.ChangedAt == nil || !after.ChangedAt.After(*before.ChangedAt) {
		t.Errorf("it has changed at %v, and then at %v", before.ChangedAt, after.ChangedAt)
	}
	_, text := b.page("/ui/changes")
	for _, want := range []string{"1 changed", "failover", "1 waiting in a rollout", "control_plane"} {
		if want != "failover" && !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	w.ChangeClusters(t, 7)
	e = b.awaitChange(t, url.Values{"search": {"CART"}}, func(e *operator.ChangeEntry) bool { return e.Changed == 2 })
	if len(e.Resources) != 1 || e.Resources[0].Name != "cart" || e.Resources[0].Difference != "" {
		t.Errorf("the search finds %+v", e.Resources)
	}
	rejected := b.awaitChange(t, url.Values{"type": {"cluster"}, "client": {brokenworld.Rejecting}}, func(e *operator.ChangeEntry) bool {
		return e.Clients != nil && e.Clients.NACKed > 0
	})
	if rejected.Clients.LastNACKed == nil {
		t.Errorf("the clients are %+v", rejected.Clients)
	}
	for path, status := range map[string]int{
		"/api/changes?since=never": 422, "/api/changes?type=claster": 422, "/api/changes?after=x": 422, "/api/changes?client=nobody": 404,
		"/ui/change?number=1000000": 404, "/ui/change": 404,
	} {
		if answer, _ := b.get(path, "application/json"); answer.StatusCode != status {
			t.Errorf("%s has status %d, want %d", path, answer.StatusCode, status)
		}
	}
}

// In a browser, a search in Changes leads to a change with its difference, and from there to the resource and back.
func TestInABrowserChangesAreFound(t *testing.T) {
	needBrowser(t)
	w, b := startBroken(t)
	w.Change(t)
	b.awaitChange(t, url.Values{"name": {"web"}}, func(e *operator.ChangeEntry) bool { return e.Changed == 1 })
	c := openChromium(t, w.Operator)
	c.open("/ui")
	c.click("Changes")
	c.awaitText("The newest first")
	c.awaitText("control plane lost")
	c.awaitText("1 waiting in a rollout")
	c.click("search")
	c.write("WEB")
	c.click("Search")
	c.awaitText("Found for “WEB”")
	c.await("only matching changes are shown", `!document.body.textContent.includes("checkout")`)
	w.ChangeSecret(t) // the page follows
	c.open("/ui/changes?type=listener&name=web")
	c.await("the change leads to its page", `(() => { const rows = [...document.querySelectorAll("#list tbody tr")].filter((r) => r.textContent.includes("1 changed")); if (!rows.length) return false; rows[0].querySelector("th a").click(); return true })()`)
	c.awaitText("What has changed")
	for class, text := range map[string]string{"del": "8443", "add": "9443"} {
		c.await("the difference has "+text, `[...document.querySelectorAll("pre.diff .`+class+`")].some((e) => e.textContent.includes("`+text+`"))`)
	}
	c.click("web")
	c.awaitText("It names")
	c.click("its changes")
	c.awaitText("Changes of “web”")
	c.click("Changes")
	c.awaitText("secret")
	c.await("no secret is shown", `!document.documentElement.outerHTML.includes("`+brokenworld.Marker+`")`)
	c.narrow("/ui/changes")
	c.screenshot("page-changes")
}
