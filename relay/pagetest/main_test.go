// Package pagetest tests the operator's page over HTTP, as a browser without scripts sees it.
package pagetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// browser requests pages.
type browser struct {
	t  *testing.T
	at string // the address of the admin listener
}

// get returns an answer and its body.
func (b *browser) get(path, accept string) (*http.Response, string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+b.at+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer, string(text)
}

// post sends a form, as a command does.
func (b *browser) post(path string, form url.Values) (*http.Response, string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, "http://"+b.at+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer, string(text)
}

// page returns a page, which must be valid.
func (b *browser) page(path string) (*html.Node, string) {
	b.t.Helper()
	answer, text := b.get(path, "text/html")
	if answer.StatusCode != http.StatusOK {
		b.t.Fatalf("%s has status %d:\n%s", path, answer.StatusCode, text)
	}
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		b.t.Fatal(err)
	}
	return root, text
}

// document decodes a document of the API.
func (b *browser) document(path string, into any) {
	b.t.Helper()
	answer, text := b.get(path, "application/json")
	if answer.StatusCode != http.StatusOK {
		b.t.Fatalf("%s has status %d:\n%s", path, answer.StatusCode, text)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		b.t.Fatalf("%s: %v\n%s", path, err, text)
	}
}

// await waits until is returns no error.
func await(t *testing.T, what string, is func() error) {
	t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	timeout := time.After(time.Minute)
	for {
		err := is()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-timeout:
			t.Fatalf("it does not come about that %s: %v", what, err)
		}
	}
}

// each calls f for each element of a page.
func each(n *html.Node, f func(*html.Node)) {
	if n.Type == html.ElementNode {
		f(n)
	}
	for c := range n.ChildNodes() {
		each(c, f)
	}
}

func attribute(n *html.Node, key string) (string, bool) {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val, true
		}
	}
	return "", false
}

// textOf returns the text of an element, with one space between words.
func textOf(n *html.Node) string {
	var b strings.Builder
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		if n.Type == html.TextNode {
			b.WriteString(n.Data)
		}
		for c := range n.ChildNodes() {
			walk(c)
		}
	}
	walk(n)
	return strings.Join(strings.Fields(b.String()), " ")
}

// link returns the target of the link with a text on a page, "" if there is none.
func link(root *html.Node, text string) (to string) {
	each(root, func(n *html.Node) {
		if href, ok := attribute(n, "href"); n.Data == "a" && ok && strings.Contains(textOf(n), text) && to == "" {
			to = href
		}
	})
	return to
}

// startBroken runs the broken world, and waits until the overview shows its problems.
func startBroken(t *testing.T) (*brokenworld.World, *browser) {
	t.Helper()
	w := brokenworld.Start(t)
	b := &browser{t, w.Operator}
	await(t, "the overview has all that is wrong", func() error {
		_, text := b.page("/ui")
		for _, want := range wrong {
			if !strings.Contains(text, html.EscapeString(want)) {
				return fmt.Errorf("it lacks %q:\n%s", want, text)
			}
		}
		return nil
	})
	return w, b
}

// wrong are the problems of the broken world on the overview.
var wrong = []string{
	fmt.Sprintf("authority %q: no server can be reached", brokenworld.Down),
	fmt.Sprintf("client %q rejects what it was sent of type cluster: %s", brokenworld.Rejecting, brokenworld.Words),
	fmt.Sprintf("the rollout of %q waits", brokenworld.EU),
	fmt.Sprintf("route \"web-routes\" names cluster %q, which does not exist", brokenworld.MissingCluster),
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }
