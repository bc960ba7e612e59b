package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// TestAFileThatIsDamagedWhileItIsOpen damages the file of an open store, and checks that no call waits, and that the
// store then has another file with what the cache has.
func TestAFileThatIsDamagedWhileItIsOpen(t *testing.T) {
	const names = 2000
	for _, c := range []struct {
		name   string
		damage func(path string) error
		// keeps: what is stored stays, also what the cache does not have. setAside is the number of files set aside.
		keeps    bool
		setAside uint64
	}{
		{"truncated", func(path string) error { return os.Truncate(path, 0) }, false, 1},
		{"truncated in its middle", func(path string) error { return os.Truncate(path, 3<<12) }, false, 1},
		{"overwritten with zeros", func(path string) error { return inPlace(path, make([]byte, 1<<23)) }, false, 1},
		{"overwritten with text", func(path string) error { return inPlace(path, []byte(strings.Repeat("text ", 1<<20))) }, false, 1},
		{"overwritten with another store", func(path string) error {
			of := &fake{}
			other, err := Open(path+"-other", of.options())
			if err != nil {
				return err
			}
			fill(other, of, 2*names)
			if err := other.Close(); err != nil {
				return err
			}
			content, err := os.ReadFile(path + "-other")
			if err != nil {
				return err
			}
			return inPlace(path, content)
		}, false, 1},
		{"deleted", os.Remove, true, 0},
		{"replaced", func(path string) error {
			if err := os.WriteFile(path+"-other", []byte("not a store"), 0o600); err != nil {
				return err
			}
			return os.Rename(path+"-other", path)
		}, true, 1},
		{"touched", func(path string) error { return os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)) }, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path, f := filepath.Join(t.TempDir(), "db"), &fake{}
			o := f.options()
			cached := map[cache.Key]map[string]*cache.Resource{}
			for i := range names / 2 {
				name := fmt.Sprintf("name-%d", i)
				cached[entry(name)] = map[string]*cache.Resource{name: resource(name, "1")}
			}
			cached[wildcard()] = map[string]*cache.Resource{"m1": resource("m1", "1"), "m2": resource("m2", "2")}
			o.Topics = func(yield func(cache.Key)) {
				for k := range cached {
					yield(k)
				}
			}
			s := open(t, path, o)
			fill(s, f, names)
			f.Lock()
			f.members = cached
			f.Unlock()
			if err := s.commitNow(); err != nil {
				t.Fatal(err)
			}
			if err := c.damage(path); err != nil {
				t.Fatal(err)
			}
			within(t, func() {
				var readers sync.WaitGroup
				for i := range 4 {
					readers.Go(func() {
						for j := range 50 {
							s.Entry(entry(fmt.Sprintf("name-%d", i*50+j)))
							s.Set(wildcard())
							s.HasKey(nil)
							s.Stats()
							if j%10 == 0 { // it reads everything
								_, _ = s.All(func(*Record) bool { return true })
							}
						}
					})
				}
				for i := range 20 {
					s.Note("cp", func(n *Notes) { n.Entry(entry(fmt.Sprint("new-", i)), resource(fmt.Sprint("new-", i), "1")) })
					s.Flush(10 * time.Millisecond)
				}
				readers.Wait()
			})
			await(t, "what was noted since", func() bool { return s.Entry(entry("new-19")) != nil })
			await(t, "what the cache has", func() bool { return s.Entry(entry("name-0")) != nil && s.Set(wildcard()).Whole() })
			within(t, func() { closed(t, s) })
			if is := s.Stats(); is.SetAside != c.setAside || is.Failure != nil {
				t.Errorf("%d files were set aside, want %d; failure: %v", is.SetAside, c.setAside, is.Failure)
			}
			if strings.Contains(f.lines(), "level=ERROR") == (c.name == "touched") {
				t.Errorf("the log has\n%s", f.lines())
			}
			if lines := strings.Count(f.lines(), "\n"); lines > 10 {
				t.Errorf("the log has %d lines:\n%s", lines, f.lines())
			}
			again := open(t, path, (&fake{}).options())
			defer closed(t, again)
			if again.Stats().SetAside != 0 {
				t.Error("the file that the relay has written cannot be used")
			}
			for i := range names {
				name := fmt.Sprintf("name-%d", i)
				if has := again.Entry(entry(name)) != nil; has != (c.keeps || i < names/2) {
					t.Fatalf("%s is stored: %t", name, has)
				}
			}
			if set := again.Set(wildcard()); !set.Whole() || len(set.Members) != 2 {
				t.Errorf("the set has %v", versions(set))
			}
		})
	}
}

// TestAFileThatIsDamagedAgainAndAgain checks that whoever damages the file all the time gets one other file a minute,
// and that notes wait meanwhile.
func TestAFileThatIsDamagedAgainAndAgain(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{}
	s := open(t, path, f.options())
	fill(s, f, 100)
	if err := s.commitNow(); err != nil {
		t.Fatal(err)
	}
	truncate := func(i int) {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		s.Note("cp", func(n *Notes) { n.Entry(entry("new"), resource("new", fmt.Sprint(i))) })
	}
	truncate(1)
	await(t, "another file", func() bool { return s.Stats().SetAside == 1 && s.Stats().Pending == 0 })
	truncate(2)
	await(t, "the failure", func() bool { return s.Stats().Failure != nil })
	if is := s.Stats(); is.Failure.Reason == "" || is.Pending == 0 || is.SetAside != 1 {
		t.Errorf("the store has %+v, and failed for %q", is, is.Failure.Reason)
	}
	if s.Entry(entry("new")) != nil {
		t.Error("a file that failed was read")
	}
	within(t, func() {
		if err := s.Rekey(newKey(t), 0); err == nil {
			t.Error("a file that failed got another key")
		}
		closed(t, s)
	})
}

// inPlace writes to a file that exists, at its beginning.
func inPlace(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// within fails the test if f takes very long.
func within(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("a call waits for the store")
	}
}

// await waits until is returns true.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the store does not have %s", what)
		}
	}
}
