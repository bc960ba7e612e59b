package pagetest

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// Each problem is a link on the overview, and the linked page describes the problem.
func TestWhatIsWrongIsFoundFromTheOverview(t *testing.T) {
	_, b := startBroken(t)
	root, _ := b.page("/")
	for i, find := range []string{"connection refused", brokenworld.Words, "frozen", "payments"} {
		to := link(root, wrong[i])
		if to == "" {
			t.Errorf("no link says %q", wrong[i])
			continue
		}
		next, _ := b.page(to)
		if text := textOf(next); !strings.Contains(text, find) {
			t.Errorf("%s, behind %q, lacks %q:\n%s", to, wrong[i], find, text)
		}
	}
}

// Every linked page exists, loads nothing from other sites, cannot be framed, and runs only the relay's own script.
// It is accessible: it has landmarks, headings, labels, and table headers.
func TestEveryPageIsThereAndComplete(t *testing.T) {
	_, b := startBroken(t)
	queue, seen := []string{"/ui"}, map[string]bool{}
	for len(queue) > 0 {
		path := queue[0]
		queue = queue[1:]
		if seen[path] || len(seen) > 200 {
			continue
		}
		seen[path] = true
		answer, text := b.get(path, "text/html")
		if answer.StatusCode != http.StatusOK && path != "/readyz?verbose" {
			t.Errorf("%s has status %d:\n%s", path, answer.StatusCode, text)
			continue
		}
		if strings.Contains(text, brokenworld.Marker) {
			t.Errorf("%s shows a private key", path)
		}
		if !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html") {
			continue
		}
		policy := answer.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s has the policy %q, which lacks %s", path, policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") {
			t.Errorf("%s has the policy %q", path, policy)
		}
		root, err := html.Parse(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		queue = append(queue, checkPage(t, path, root)...)
	}
	for _, part := range []string{"/ui/clients", "/ui/client?", "/ui/authority?", "/ui/resources", "/ui/resource?", "/rollout", "/ui/explain?", "/ui/static/"} {
		if !slices.ContainsFunc(slices.Collect(keys(seen)), func(path string) bool { return strings.HasPrefix(path, part) }) {
			t.Errorf("no page leads to %s", part)
		}
	}
}

func keys(m map[string]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// checkPage checks the form of a page, and returns its links.
func checkPage(t *testing.T, path string, root *html.Node) (links []string) {
	t.Helper()
	count := map[string]int{}
	labelled := map[string]bool{}
	each(root, func(n *html.Node) {
		if id, ok := attribute(n, "for"); ok {
			labelled[id] = true
		}
	})
	ids := map[string]bool{}
	each(root, func(n *html.Node) {
		count[n.Data]++
		if id, ok := attribute(n, "id"); ok {
			if ids[id] {
				t.Errorf("%s has the id %q twice", path, id)
			}
			ids[id] = true
		}
		for _, a := range n.Attr {
			if a.Key == "style" || strings.HasPrefix(a.Key, "on") {
				t.Errorf("%s: <%s %s=%q>", path, n.Data, a.Key, a.Val)
			}
			if (a.Key == "href" || a.Key == "src" || a.Key == "action") && a.Val != "data:," && !strings.HasPrefix(a.Val, "#") {
				if !strings.HasPrefix(a.Val, "/") || strings.HasPrefix(a.Val, "//") {
					t.Errorf("%s: <%s %s=%q> leads elsewhere", path, n.Data, a.Key, a.Val)
				} else if a.Key != "action" {
					to, _, _ := strings.Cut(a.Val, "#")
					links = append(links, to)
				}
			}
		}
		switch n.Data {
		case "style":
			t.Errorf("%s has a style of its own", path)
		case "th":
			if _, ok := attribute(n, "scope"); !ok {
				t.Errorf("%s: a head of a table has no scope: %s", path, textOf(n))
			}
		case "input", "select":
			id, _ := attribute(n, "id")
			if kind, _ := attribute(n, "type"); kind != "hidden" && !labelled[id] {
				t.Errorf("%s: an input has no label: %v", path, n.Attr)
			}
		case "form":
			if method, _ := attribute(n, "method"); method == "post" {
				if action, _ := attribute(n, "action"); !strings.HasPrefix(action, "/rollout/") {
					t.Errorf("%s has a form to %s", path, action)
				}
			}
		case "script":
			if n.FirstChild != nil {
				t.Errorf("%s has a script of its own", path)
			}
		}
	})
	if path != "/ui/live.js" {
		for _, one := range []string{"main", "h1", "header", "nav", "title"} {
			if count[one] != 1 {
				t.Errorf("%s has %d times <%s>, want once", path, count[one], one)
			}
		}
	}
	return links
}

// A resource's page shows which clients hold it, and in which state.
func TestAResourceSaysWhoHoldsIt(t *testing.T) {
	_, b := startBroken(t)
	var s operator.ResourceStatus
	b.document("/api/resource?authority="+brokenworld.Shop+"&type=cluster&name=cart", &s)
	states := map[string]string{}
	for _, h := range s.Holders.Clients {
		states[h.Client] = h.State
	}
	if len(states) != 2 || states[brokenworld.Healthy] != "acked" || states[brokenworld.Rejecting] != "nacked" || s.Holders.LookedAt != 0 {
		t.Errorf("its holders are %v", s.Holders)
	}
	if len(s.ReferredBy) != 2 || s.ReferredBy[0].Name != "front" || s.ReferredBy[1].Name != "web-routes" {
		t.Errorf("it is named by %+v", s.ReferredBy)
	}
}
