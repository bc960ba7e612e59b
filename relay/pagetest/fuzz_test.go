package pagetest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// FuzzQuery requests each page and document with any query. The answer is a page in which the query is only text, a document,
// or what is wrong with the request; and it is not large.
func FuzzQuery(f *testing.F) {
	paths := []string{
		"/ui", "/ui/clients", "/ui/authorities", "/ui/authority", "/ui/resources", "/ui/unused", "/ui/resource", "/ui/client", "/ui/explain", "/ui/diff", "/ui/propagation", "/rollout",
		"/api/clients", "/api/authority", "/api/resources", "/api/unused", "/api/resource", "/api/client", "/api/explain", "/api/diff", "/api/propagation", "/api/lint", "/rollouts",
	}
	for i, q := range []string{
		"", "search=web&state=rejects&after=1&limit=1", "", "name=shop.example.com", "search=%3Cscript%3E&authority=shop.example.com&type=cluster&limit=2",
		"after=%7B%7D", "authority=shop.example.com&type=cluster&name=web&partition=", "client=" + brokenworld.Rejecting + "&from=1", "stream=1&name=web&type=listener",
		"a=%23x&b=" + brokenworld.Rejecting, "authority=shop.example.com&type=cluster&rollout=true", "partition=x",
	} {
		f.Add(uint8(i), q)
		f.Add(uint8(i+12), q)
	}
	w := brokenworld.Start(f)
	f.Fuzz(func(t *testing.T, which uint8, query string) {
		b := &browser{t, w.Operator}
		path := paths[int(which)%len(paths)]
		values, _ := url.ParseQuery(query)
		answer, text := b.get(path+"?"+values.Encode(), "text/html")
		if len(text) > 300<<10 {
			t.Fatalf("%s?%s has %d bytes", path, query, len(text))
		}
		kind := answer.Header.Get("Content-Type")
		switch {
		case answer.StatusCode >= http.StatusInternalServerError && answer.StatusCode != http.StatusServiceUnavailable:
			t.Fatalf("%s?%s: %d %s", path, query, answer.StatusCode, text)
		case strings.HasPrefix(kind, "text/html"):
			onlyText(t, path+"?"+query, text)
		case kind == "application/json":
			if !json.Valid([]byte(text)) {
				t.Fatalf("%s?%s: %s", path, query, text)
			}
		case !strings.HasPrefix(kind, "text/plain"), answer.StatusCode == http.StatusOK, answer.Header.Get("X-Content-Type-Options") != "nosniff":
			t.Fatalf("%s?%s is answered with %d, and %s as %q", path, query, answer.StatusCode, text, kind)
		}
	})
}

// FuzzPost sends any body to each action. The answer is a document, or what is wrong with the request, and the relay still
// serves.
func FuzzPost(f *testing.F) {
	paths := []string{"/check?name=x.yaml", "/rollout/approve", "/rollout/reject", "/rollout/freeze", "/rollout/thaw", "/rollout/trust", "/rollout/other"}
	f.Add(uint8(0), "listeners: [{address: 127.0.0.1:0}]\nauthorities: [{name: shop.example.com, servers: [{address: 127.0.0.1:1}]}]\n")
	f.Add(uint8(0), "listeners: [}")
	f.Add(uint8(2), "authority="+brokenworld.EU+"&partition=x&reason=%3Cscript%3E")
	f.Add(uint8(1), "authority=nobody")
	f.Add(uint8(6), "%")
	w := brokenworld.Start(f)
	statuses := []int{
		http.StatusOK, http.StatusSeeOther, http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusTooManyRequests,
	}
	f.Fuzz(func(t *testing.T, which uint8, body string) {
		path := paths[int(which)%len(paths)]
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.Operator+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var document any
		wrong := json.NewDecoder(answer.Body).Decode(&document)
		if !slices.Contains(statuses, answer.StatusCode) || answer.StatusCode == http.StatusOK && wrong != nil {
			t.Fatalf("%s with %q is answered with %s (%v)", path, body, answer.Status, wrong)
		}
		b := &browser{t, w.Operator}
		if ok, text := b.get("/healthz", ""); ok.StatusCode != http.StatusOK {
			t.Fatalf("after %s with %q: %s", path, body, text)
		}
	})
}
