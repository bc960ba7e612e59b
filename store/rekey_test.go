package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/xds-relay/xds-relay/cache"
)

const secretText = "SECRET-MARKER"

var (
	secretName = cache.Key{Scope: scope, TypeURL: secretType, Name: "s"}
	secretSet  = cache.Key{Scope: scope, TypeURL: secretType, Name: cache.Wildcard}
)

func aSecret() *cache.Resource {
	return cache.NewResource(cache.Spec{Name: "s", Version: "1", TypeURL: secretType, Value: append([]byte{0x0a, byte(len(secretText))}, secretText...)})
}

// fill notes names, a set and a secret, and returns what the store is to have of them.
func fill(s *Store, f *fake, names int) {
	f.Lock()
	f.members = map[cache.Key]map[string]*cache.Resource{secretName: {"s": aSecret()}, secretSet: {"s": aSecret()}}
	f.Unlock()
	s.Note("cp", func(n *Notes) {
		for i := range names {
			name := fmt.Sprintf("name-%d", i)
			n.Entry(entry(name), resource(name, "1"))
		}
		n.Member(wildcard(), "m1", resource("m1", "1"))
		n.Member(wildcard(), "m2", resource("m2", "2"))
		n.Whole(wildcard(), false)
		n.Entry(secretName, aSecret())
		n.Member(secretSet, "s", aSecret())
		n.Whole(secretSet, false)
	})
}

// mustHave checks what fill has noted.
func mustHave(t *testing.T, s *Store, names int, secrets bool) {
	t.Helper()
	for i := range names {
		if name := fmt.Sprintf("name-%d", i); s.Entry(entry(name)) == nil {
			t.Fatalf("%s is lost", name)
		}
	}
	if set := s.Set(wildcard()); !set.Whole() || !maps.Equal(versions(set), map[string]string{"m1": "1", "m2": "2"}) {
		t.Errorf("the set has %v, whole: %t", versions(set), set.Whole())
	}
	if is := s.Entry(secretName) != nil; is != secrets {
		t.Errorf("the secret is stored: %t", is)
	}
	if is := s.Set(secretSet).Whole(); is != secrets {
		t.Errorf("the set with the secret is whole: %t", is)
	}
}

// With another key everything is stored as before, also what comes at the same time, and what is read meanwhile is
// there. The file is of the new key only.
func TestAnOpenStoreGetsAnotherKey(t *testing.T) {
	const names = 500
	one, two := newKey(t), newKey(t)
	for _, test := range []struct {
		name          string
		before, after *Key
	}{{"another key", one, two}, {"the first key", nil, one}, {"no key any more", one, nil}, {"the same key", one, one}} {
		t.Run(test.name, func(t *testing.T) {
			path, f := filepath.Join(t.TempDir(), "db"), &fake{}
			o := f.options()
			o.Key = test.before
			s := open(t, path, o)
			fill(s, f, names)
			s.Flush(time.Minute)
			mustHave(t, s, names, test.before != nil)
			var during sync.WaitGroup
			stop := make(chan struct{})
			during.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					if name := fmt.Sprintf("name-%d", i%names); s.Entry(entry(name)) == nil {
						t.Errorf("%s cannot be read", name)
						return
					}
				}
			})
			noted := 0
			during.Go(func() {
				for ; ; noted++ {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
					}
					name := fmt.Sprintf("late-%d", noted)
					s.Note("cp", func(n *Notes) { n.Entry(entry(name), resource(name, "1")) })
				}
			})
			for _, key := range []*Key{test.after, test.before, test.after} {
				if err := s.Rekey(key, 0); err != nil {
					t.Fatal(err)
				}
				if !s.HasKey(key) || s.Encrypted() != (key != nil) {
					t.Error("the store does not have the key")
				}
			}
			close(stop)
			during.Wait()
			s.Flush(time.Minute)
			mustHave(t, s, names, test.after != nil)
			closed(t, s)
			if left, _ := filepath.Glob(path + "?*"); len(left) > 0 {
				t.Errorf("there are %v", left)
			}
			if content, err := os.ReadFile(path); err != nil || test.after == nil && bytes.Contains(content, []byte(secretText)) || test.after != nil && bytes.Contains(content, []byte("name-1")) {
				t.Errorf("what is secret is in the file: %v", err)
			}
			o.Key = test.after
			s = open(t, path, o)
			defer closed(t, s)
			mustHave(t, s, names, test.after != nil)
			for i := range noted {
				if name := fmt.Sprintf("late-%d", i); s.Entry(entry(name)) == nil {
					t.Fatalf("%s, which came at the same time, is lost", name)
				}
			}
			if n := s.Stats().SetAside; n != 0 {
				t.Error("the file was set aside")
			}
		})
	}
}

// If the records cannot be written with another key, the old key stays, and nothing is lost.
func TestAKeyThatCannotBeUsedChangesNothing(t *testing.T) {
	const names = 2000
	for _, test := range []struct {
		name  string
		fails func(t *testing.T, path string, full *bool) (maxBytes int64)
		want  string
	}{
		{"the disk is full", func(_ *testing.T, _ string, full *bool) int64 { *full = true; return 0 }, "no space left on device"},
		{"the other file cannot be made", func(t *testing.T, path string, _ *bool) int64 {
			if err := os.MkdirAll(filepath.Join(path+rekeyed, "folder"), 0o700); err != nil {
				t.Fatal(err)
			}
			return 0
		}, rekeyed},
		{"max_bytes has no room", func(*testing.T, string, *bool) int64 { return 128 << 10 }, "want a larger store.max_bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path, f := filepath.Join(t.TempDir(), "db"), &fake{}
			var full bool
			o := f.options()
			o.Key = newKey(t)
			o.update = func(db *bolt.DB, f func(*bolt.Tx) error) error {
				return db.Update(func(tx *bolt.Tx) error {
					if err := f(tx); err != nil || !full {
						return err
					}
					return &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
				})
			}
			s := open(t, path, o)
			fill(s, f, names)
			s.Flush(time.Minute)
			maxBytes := test.fails(t, path, &full)
			err := s.Rekey(newKey(t), maxBytes)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v, want %q", err, test.want)
			}
			full = false
			if !s.HasKey(o.Key) {
				t.Error("the store has another key")
			}
			mustHave(t, s, names, true)
			s.Note("cp", func(n *Notes) { n.Entry(entry("after"), resource("after", "1")) })
			closed(t, s)
			o.update = nil
			s = open(t, path, o)
			defer closed(t, s)
			mustHave(t, s, names, true)
			if s.Entry(entry("after")) == nil {
				t.Error("nothing is stored afterwards")
			}
		})
	}
}

// A process that was killed while it wrote the file of another key leaves nothing behind, and a store that is closed
// gets no key.
func TestAnotherKeyAndTheEndOfTheProcess(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{}
	s := open(t, path, f.options())
	fill(s, f, 10)
	closed(t, s)
	if err := s.Rekey(newKey(t), 0); !errors.Is(err, errClosed) {
		t.Errorf("the error of a closed store is %v", err)
	}
	if err := os.WriteFile(path+rekeyed, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, f.options())
	defer closed(t, s)
	mustHave(t, s, 10, false)
	if _, err := os.Stat(path + rekeyed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half a file is there: %v", err)
	}
}
