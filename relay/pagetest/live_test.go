package pagetest

import (
	"bufio"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// listen opens the events of a page.
func (b *browser) listen(page string) *http.Response {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+b.at+"/ui/live?"+url.Values{"page": {page}}.Encode(), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// An open page is sent again when it has changed. The number of open pages is limited, and closing one makes room.
func TestAnOpenPageIsKeptUpToDate(t *testing.T) {
	w, b := startBroken(t)
	events := b.listen("/ui/clients?search=newcomer")
	if got := events.Header.Get("Content-Type"); events.StatusCode != http.StatusOK || got != "text/event-stream" {
		t.Fatalf("status %d, %s", events.StatusCode, got)
	}
	c := w.Connect(t, &corev3.Node{Id: "newcomer-1"}, nil)
	c.Subscribe(t, xdstype.ListenerV3, "*")
	c.Await(t, "web")
	lines := bufio.NewScanner(events.Body)
	lines.Buffer(nil, 1<<20)
	came := false
	for !came && lines.Scan() {
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "data: ") && line != "data: " && !strings.HasPrefix(line, ":") {
			t.Fatalf("an event has the line %q", line)
		}
		came = strings.Contains(lines.Text(), "newcomer-1</a>")
	}
	if !came {
		t.Errorf("the page does not change: %v", lines.Err())
	}
	for page, want := range map[string]int{"/ui/nothing": http.StatusNotFound, "https://elsewhere.example/": http.StatusNotFound, "%": http.StatusBadRequest} {
		if got := b.listen(page).StatusCode; got != want {
			t.Errorf("the events of %s have status %d, want %d", page, got, want)
		}
	}
	const most = 10
	var open []*http.Response
	for range most - 1 {
		open = append(open, b.listen("/ui"))
	}
	if got := b.listen("/ui").StatusCode; got != http.StatusServiceUnavailable {
		t.Errorf("page %d has status %d", most+1, got)
	}
	if err := open[0].Body.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "there is room again", func() error {
		if b.listen("/ui").StatusCode != http.StatusOK {
			return http.ErrServerClosed
		}
		return nil
	})
}
