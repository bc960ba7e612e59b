package certs

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/xds-relay/xds-relay/internal/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// take returns the lines since the last call.
func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// expect waits for the next line, which must be the only one.
func (l *lines) expect(t *testing.T, want string) {
	t.Helper()
	await(t, "a line of log", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.text.Len() > 0
	})
	if got := l.take(); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
		t.Errorf("logged\n%swant one line with\n%s", got, want)
	}
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "event" {
			return slog.Attr{}
		}
		return a
	}}))
}

// newStore returns a part of a Store, and its log.
func newStore(t *testing.T) (*Part, *lines) {
	t.Helper()
	l := &lines{}
	s := NewStore(l.logger()).Part()
	t.Cleanup(s.Store.Close)
	return s, l
}

// write writes a file in place.
func write(t *testing.T, path string, data []byte) {
	t.Helper()
	check(t, os.WriteFile(path, data, 0o600))
}

// replace renames a new file into place.
func replace(t *testing.T, path string, data []byte) {
	t.Helper()
	write(t, path+".new", data)
	check(t, os.Rename(path+".new", path))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await waits until is returns true. It takes less time than it takes the Store to read files
// without a notice of their change.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	giveUp := time.After(watch.Rescan / 2)
	tick := time.NewTicker(watch.Quiet / 20)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-giveUp:
			t.Fatalf("%s: not so far", what)
		}
	}
}

// swap makes what Kubernetes mounts of a Secret: files are symlinks into ..data, which is a
// symlink that is replaced as a whole.
func swap(t *testing.T, dir, generation string, files map[string][]byte) {
	t.Helper()
	version := filepath.Join(dir, "..2026_"+generation)
	check(t, os.Mkdir(version, 0o700))
	for name, data := range files {
		write(t, filepath.Join(version, name), data)
	}
	old, err := os.Readlink(filepath.Join(dir, "..data"))
	first := err != nil
	check(t, os.Symlink(filepath.Base(version), filepath.Join(dir, "..data_tmp")))
	check(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	if !first {
		check(t, os.RemoveAll(filepath.Join(dir, old)))
		return
	}
	for name := range files {
		check(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
	}
}
