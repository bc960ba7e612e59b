package page

// An open page is live: its script listens to server-sent events, each of which has the whole page. The
// server renders a page only while it is open, and sends it only if it has changed.

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

const (
	// liveEvery is how often the server renders an open page.
	liveEvery = 2 * time.Second
	// mostLive bounds the number of live pages. Others stay as they were when they were loaded.
	mostLive = 10
	// pageBytes bounds a page in an event.
	pageBytes = 4 << 20
)

// live counts the live pages.
type live struct {
	every time.Duration
	open  atomic.Int32
}

// serveLive sends a page whenever it has changed. The query's page is its path and query.
func (s *site) serveLive(w http.ResponseWriter, r *http.Request) {
	at, err := url.Parse(r.URL.Query().Get("page"))
	if err != nil {
		http.Error(w, "the parameter page is not the path of a page", http.StatusBadRequest)
		return
	}
	v := s.viewAt(at.Path)
	if v == nil || at.Host != "" || at.Scheme != "" {
		http.Error(w, "there is no such page", http.StatusNotFound)
		return
	}
	defer s.live.open.Add(-1)
	if s.live.open.Add(1) > mostLive {
		http.Error(w, fmt.Sprintf("%d pages are live already", mostLive), http.StatusServiceUnavailable)
		return
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // that of requests would end the stream
	protect(w.Header())
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write([]byte(": open\n\n"))
	_ = control.Flush()
	again := time.NewTicker(s.live.every)
	defer again.Stop()
	var last uint64
	seed := maphash.MakeSeed()
	for {
		select {
		case <-again.C:
		case <-r.Context().Done():
			return
		}
		text, err := v.render(at.Query())
		if err != nil || len(text) > pageBytes {
			continue // the resource may be gone: the page keeps what it shows
		}
		is := maphash.Bytes(seed, text)
		if is == last {
			continue
		}
		last = is
		// If a client does not read, the write fails at the deadline, and its stream ends.
		_ = control.SetWriteDeadline(time.Now().Add(writeWithin))
		if _, err := w.Write(event(text)); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
	}
}

// writeWithin is how long a client has to read an event.
const writeWithin = 10 * time.Second

// event returns a page as a server-sent event: each line of the page is a line of data.
func event(text []byte) []byte {
	var b bytes.Buffer
	b.Grow(len(text) + len(text)/8)
	text = bytes.ReplaceAll(text, []byte("\r"), nil)
	for line := range bytes.Lines(text) {
		b.WriteString("data: ")
		b.Write(bytes.TrimSuffix(line, []byte("\n")))
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return b.Bytes()
}
