package certs

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Kind defines how the files of a [File] are read.
type Kind[T any] struct {
	// Role is the purpose of the files, for metrics and logs.
	Role string
	// Parse returns the value of the files at paths with these contents. Its errors name the faulty file, and contain
	// no secrets.
	Parse func(paths []string, contents [][]byte) (T, error)
	// Expiry returns when the value expires. It is nil for kinds that do not expire.
	Expiry func(T) time.Time
}

// File is a value that is read from one or several files, and again when they change.
type File[T any] struct {
	kind  Kind[T]
	paths []string
	log   *slog.Logger
	wakes chan struct{} // has capacity 1
	value atomic.Pointer[T]

	// Used only while reading.
	contents [][]byte // the contents that value was read from
	expired  bool     // the expiry of value was logged

	mu       sync.Mutex
	problem  string // what is wrong with the files, "" if nothing is
	failures uint64
}

// Follow reads files of a kind, and reads them again when they change. The error is the reason why they cannot be
// used; they are not followed then.
func Follow[T any](p *Part, kind Kind[T], paths ...string) (*File[T], error) {
	f, err := followFiles(p.Store, kind, paths...)
	if err == nil {
		p.making.Lock()
		p.alone = append(p.alone, f)
		p.making.Unlock()
	}
	return f, err
}

func followFiles[T any](s *Store, kind Kind[T], paths ...string) (*File[T], error) {
	s.watch(paths) // first, so that no change is missed
	return newFile(s, kind, paths)
}

func newFile[T any](s *Store, kind Kind[T], paths []string) (*File[T], error) {
	f := &File[T]{
		kind: kind, paths: paths, wakes: make(chan struct{}, 1),
		log: s.log.With("role", kind.Role, "path", strings.Join(paths, ",")),
	}
	contents, value, err := f.load()
	if err != nil {
		return nil, err
	}
	f.contents = contents
	f.value.Store(&value)
	f.warnIfExpired()
	s.add(f)
	return f, nil
}

// Get returns the last usable value. It may be called concurrently.
func (f *File[T]) Get() T { return *f.value.Load() }

// statuses implements followed.
func (f *File[T]) statuses() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := Status{Role: f.kind.Role, Path: f.paths[0], Problem: f.problem, Failures: f.failures}
	if f.kind.Expiry != nil {
		st.Expires = f.kind.Expiry(f.Get())
	}
	return []Status{st}
}

// wake implements followed.
func (f *File[T]) wake() {
	select {
	case f.wakes <- struct{}{}:
	default:
	}
}

// run implements followed.
func (f *File[T]) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wakes:
			f.read()
		}
	}
}

// read reads the files. If they cannot be used, the value does not change.
func (f *File[T]) read() {
	defer f.warnIfExpired()
	contents, value, err := f.load()
	before := f.note(err)
	switch {
	case err != nil:
		if err.Error() != before {
			f.log.Error("changed files cannot be used, the last good ones stay in use", "error", err, "event", "credentials")
		}
		return
	case equal(contents, f.contents):
		if before != "" {
			f.log.Info("files can be used again", "event", "credentials")
		}
		return
	}
	f.contents, f.expired = contents, false
	f.value.Store(&value)
	f.log.Info("read changed files", "event", "credentials")
}

// note records the result of a read, and returns the problem before it.
func (f *File[T]) note(err error) (before string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, f.problem = f.problem, ""
	if err != nil {
		f.problem = err.Error()
		f.failures++
	}
	return before
}

func (f *File[T]) load() (contents [][]byte, value T, err error) {
	contents = make([][]byte, len(f.paths))
	for i, path := range f.paths {
		if contents[i], err = os.ReadFile(path); err != nil {
			return nil, value, err
		}
	}
	value, err = f.kind.Parse(f.paths, contents)
	return contents, value, err
}

// warnIfExpired logs once for each value that it has expired. While nothing changes, it is called every watch.Rescan.
func (f *File[T]) warnIfExpired() {
	if f.kind.Expiry == nil || f.expired {
		return
	}
	if expiry := f.kind.Expiry(f.Get()); time.Now().After(expiry) {
		f.expired = true
		f.log.Warn("certificate has expired", "expired", expiry, "event", "credentials")
	}
}

func equal(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
