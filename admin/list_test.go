package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

type listed struct {
	ID   int      `json:"id"`
	Text string   `json:"text,omitempty"`
	More []string `json:"more"`
}

// A list looks as the same value in JSON would.
func TestAListIsJSON(t *testing.T) {
	for _, values := range [][]listed{{}, {{ID: 1, More: []string{}}}, {{ID: 1}, {ID: 2, Text: "<a>\n", More: []string{"x", "y"}}}} {
		metrics, err := NewMetrics()
		if err != nil {
			t.Fatal(err)
		}
		s := New(metrics)
		List(s, "/list", "a list", func() iter.Seq[listed] { return slices.Values(values) })
		w := httptest.NewRecorder()
		s.mux.ServeHTTP(w, httptest.NewRequest("GET", "/list", nil))
		var want bytes.Buffer
		e := json.NewEncoder(&want)
		e.SetIndent("", "  ")
		if err := e.Encode(values); err != nil {
			t.Fatal(err)
		}
		if w.Body.String() != want.String() {
			t.Errorf("got %s, want %s", w.Body, &want)
		}
	}
}

// What is shown is not collected: a list that nobody reads ends.
func TestAListIsWrittenOneByOne(t *testing.T) {
	const size = 1 << 20
	asked := 0
	list := func(yield func(listed) bool) {
		for range 100 {
			asked++
			if !yield(listed{Text: strings.Repeat("x", size)}) {
				return
			}
		}
	}
	w := &brokenWriter{room: 3 * size}
	if err := writeList(w, list); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
	if asked > 4 {
		t.Errorf("%d were asked for, of which 3 had room", asked)
	}
}

var errBroken = errors.New("the connection has gone")

type brokenWriter struct{ room int }

func (w *brokenWriter) Write(b []byte) (int, error) {
	if w.room -= len(b); w.room < 0 {
		return 0, errBroken
	}
	return len(b), nil
}
