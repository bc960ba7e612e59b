package pagetest

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/net/html"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// Clients and control planes choose names. No name may become markup, a script or a link to another site, and a name
// of a megabyte must not make a page of a megabyte.
func TestHostileNamesAreOnlyText(t *testing.T) {
	w, b := startBroken(t)
	const markup = `"><script>alert(1)</script><img src=x onerror=alert(2)>{{.}}`
	const scheme = `javascript:alert(3)`
	long := strings.Repeat("long", 1<<18)
	w.WriteFile(t, brokenworld.Shop, "long.json", `{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "`+long+`"}`)
	for _, id := range []string{markup, scheme, long[:200<<10]} {
		c := w.Connect(t, &corev3.Node{Id: id, Cluster: markup}, func(typeURL string) string {
			if typeURL == xdstype.ListenerV3 {
				return markup
			}
			return ""
		})
		c.Subscribe(t, xdstype.ClusterV3, "*", markup, scheme, long[:4000])
		c.Subscribe(t, xdstype.ListenerV3, "*")
		c.Await(t, "web")
		c.Await(t, long)
	}
	var list operator.ClientList
	await(t, "all clients are listed as rejecting", func() error {
		b.document("/api/clients?state=rejects", &list)
		if len(list.Clients) != 4 {
			return http.ErrNoLocation
		}
		return nil
	})
	paths := []string{
		"/ui", "/ui/clients", "/ui/resources", "/ui/resources?" + url.Values{"search": {markup}}.Encode(), "/ui/clients?" + url.Values{"search": {markup}}.Encode(),
		"/ui/resource?" + url.Values{"authority": {"shop.example.com"}, "type": {"cluster"}, "name": {markup}}.Encode(),
		"/ui/resource?" + url.Values{"authority": {markup}, "type": {markup + "/x"}, "name": {scheme}}.Encode(),
		"/ui/explain?" + url.Values{"client": {markup}, "type": {"cluster"}, "name": {markup}}.Encode(), "/ui/client?" + url.Values{"client": {markup}}.Encode(),
		"/ui/diff?" + url.Values{"a": {markup}, "b": {scheme}}.Encode(), "/ui/authority?" + url.Values{"name": {markup}}.Encode(),
	}
	for _, c := range list.Clients {
		paths = append(paths, "/ui/client?"+url.Values{"client": {"#" + number(c.Stream)}}.Encode())
	}
	shown := 0
	for _, path := range paths {
		answer, text := b.get(path, "text/html")
		if answer.StatusCode == http.StatusInternalServerError {
			t.Errorf("%s: %s", path, text)
		}
		if len(text) > 300<<10 {
			t.Errorf("%s has %d bytes", path, len(text))
		}
		shown += strings.Count(text, html.EscapeString("alert(1)"))
		onlyText(t, path, text)
	}
	if shown < 10 {
		t.Errorf("the names are shown %d times", shown)
	}
}

// onlyText checks that a page has no script and loads nothing, whatever the names in it.
func onlyText(t *testing.T, path, text string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	each(root, func(n *html.Node) {
		if slices.Contains([]string{"img", "iframe", "object", "embed", "base"}, n.Data) || n.Data == "script" && n.FirstChild != nil {
			t.Errorf("%s has a <%s>", path, n.Data)
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || (a.Key == "href" || a.Key == "src") && strings.HasPrefix(strings.ToLower(a.Val), "javascript:") {
				t.Errorf("%s: <%s %s=%q>", path, n.Data, a.Key, a.Val)
			}
		}
	})
}
