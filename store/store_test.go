package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3" // what is secret is known of linked types
	bolt "go.etcd.io/bbolt"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

const (
	routeType  = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

var scope = cache.Scope{Authority: "cp", OldStyle: true, Partition: "edge"}

func entry(name string) cache.Key { return cache.Key{Scope: scope, TypeURL: routeType, Name: name} }

func wildcard() cache.Key { return entry(cache.Wildcard) }

func resource(name, version string) *cache.Resource {
	return cache.NewResource(cache.Spec{
		Name: name, Version: version, TypeURL: routeType, Value: append([]byte{0x0a, byte(len(name))}, name...),
	})
}

// fake is what a test has of a cache, and of the log.
type fake struct {
	sync.Mutex
	members map[cache.Key]map[string]*cache.Resource
	log     bytes.Buffer
}

func (f *fake) Write(b []byte) (int, error) {
	f.Lock()
	defer f.Unlock()
	return f.log.Write(b)
}

func (f *fake) lines() string {
	f.Lock()
	defer f.Unlock()
	return f.log.String()
}

func (f *fake) options() Options {
	return Options{
		noSync: true,
		Log:    slog.New(slog.NewTextHandler(f, nil)),
		Contents: func(k cache.Key, yield func(string, *cache.Resource)) {
			f.Lock()
			defer f.Unlock()
			for key, r := range f.members[k] {
				yield(key, r)
			}
		},
		Watched: func(k cache.Key) bool {
			f.Lock()
			defer f.Unlock()
			return f.members[k] != nil
		},
	}
}

func newKey(t testing.TB) *Key {
	t.Helper()
	b, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	k, err := ParseKey(b)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func open(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closed(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// versions returns what a set has, by the members' keys.
func versions(set *Set) map[string]string {
	all := map[string]string{}
	for _, r := range set.Members {
		all[r.Member] = r.Resource.Version()
	}
	return all
}

func keysToTest(t testing.TB) map[string]*Key {
	return map[string]*Key{"plain": nil, "encrypted": newKey(t)}
}

func TestWhatIsNotedIsThereAfterARestart(t *testing.T) {
	for name, key := range keysToTest(t) {
		t.Run(name, func(t *testing.T) {
			path, f := filepath.Join(t.TempDir(), "db"), &fake{}
			o := f.options()
			o.Key = key
			s := open(t, path, o)
			alias := resource("own", "7").Aliased()
			variant := cache.NewResource(cache.Spec{
				Name: "v", Version: "1", TypeURL: routeType, Value: []byte{0x0a, 1, 'v'}, Constraints: "\x0a\x00", Extra: []byte{0x3a, 0},
			})
			redirect := cache.NewResource(cache.Spec{
				Name: "r", Version: "2", TypeURL: xdstype.Locator, Value: []byte{0x12, 1, 'x'}, Redirect: "xdstp://other/t/x",
			})
			s.Note("cp:1", func(n *Notes) {
				n.Entry(entry("a"), resource("a", "1"))
				n.Entry(entry("alias"), alias)
				n.Entry(entry("v"), variant)
				n.Entry(entry("r"), redirect)
				n.Entry(entry("gone"), resource("gone", "1"))
				n.Entry(entry("gone"), nil)
				n.Member(wildcard(), "m", resource("m", "1"))
				n.Whole(wildcard(), false)
			})
			closed(t, s)

			s = open(t, path, o)
			defer closed(t, s)
			for name, want := range map[string]*cache.Resource{"a": resource("a", "1"), "alias": alias, "v": variant, "r": redirect} {
				got := s.Entry(entry(name))
				switch {
				case got == nil:
					t.Errorf("%s is not there", name)
				case got.Server != "cp:1" || time.Since(got.Time) > time.Minute:
					t.Errorf("%s is from %q at %s", name, got.Server, got.Time)
				case got.Resource.Hash() != want.Hash() || got.Resource.Version() != want.Version() || got.Resource.Name() != want.Name() ||
					got.Resource.Alias() != want.Alias() || got.Resource.Redirect() != want.Redirect() ||
					got.Resource.Constraints() != want.Constraints() || got.Resource.TypeURL() != want.TypeURL():
					t.Errorf("%s is %+v, want %+v", name, got.Resource.Spec(), want.Spec())
				}
			}
			if got := s.Entry(entry("gone")); got != nil {
				t.Errorf("what is gone is there: %s", got)
			}
			if got := s.Entry(entry("never")); got != nil {
				t.Errorf("what never was is there: %s", got)
			}
			set := s.Set(wildcard())
			if got := versions(set); !set.Whole() || !maps.Equal(got, map[string]string{"m": "1"}) {
				t.Errorf("the set has %v, whole: %t", got, set.Whole())
			}
			if set := s.Set(cache.Key{Scope: scope, TypeURL: secretType, Name: cache.Wildcard}); set.Whole() {
				t.Error("a set that never was is whole")
			}
		})
	}
}

// A resource that left the set while nothing was written of it is not in the set after a restart.
func TestASetHasOnlyTheMembersOfItsNewestState(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{members: map[cache.Key]map[string]*cache.Resource{}}
	s := open(t, path, f.options())
	s.Note("cp", func(n *Notes) {
		for i := range 100 {
			name := fmt.Sprint(i)
			n.Member(wildcard(), name, resource(name, "1"))
		}
		n.Whole(wildcard(), false)
	})
	closed(t, s)
	f.members[wildcard()] = map[string]*cache.Resource{"5": resource("5", "2"), "7": resource("7", "1")}
	s = open(t, path, f.options())
	s.Note("cp", func(n *Notes) {
		n.Member(wildcard(), "5", resource("5", "2"))
		n.Whole(wildcard(), true)
	})
	closed(t, s)
	s = open(t, path, f.options())
	defer closed(t, s)
	if got, want := versions(s.Set(wildcard())), map[string]string{"5": "2", "7": "1"}; !maps.Equal(got, want) {
		t.Errorf("the set has %v, want %v", got, want)
	}
}

// What is the same again is not written again.
func TestWhatIsStoredIsNotWrittenAgain(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{}
	for i := range 2 {
		s := open(t, path, f.options())
		s.Note("cp", func(n *Notes) { n.Entry(entry("a"), resource("a", "1")) })
		if err := s.commitNow(); err != nil {
			t.Fatal(err)
		}
		if got, want := s.Stats().Written, uint64(1-i); got != want {
			t.Errorf("run %d wrote %d records, want %d", i, got, want)
		}
		closed(t, s)
	}
}

// commitNow waits until all that is noted is written.
func (s *Store) commitNow() error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(time.Millisecond) {
		if s.Stats().Pending == 0 && (s.Stats().Commits > 0 || s.Stats().Failures > 0) {
			return nil
		}
	}
	return errors.New("it was not written in a minute")
}

func TestWithoutAKeyNoSecretIsOnDisk(t *testing.T) {
	marker := "SECRET-MARKER"
	secret := cache.NewResource(cache.Spec{Name: "s", Version: "1", TypeURL: secretType, Value: append([]byte{0x0a, byte(len(marker))}, marker...)})
	k := cache.Key{Scope: scope, TypeURL: secretType, Name: "s"}
	set := cache.Key{Scope: scope, TypeURL: secretType, Name: cache.Wildcard}
	for name, key := range keysToTest(t) {
		t.Run(name, func(t *testing.T) {
			path, f := filepath.Join(t.TempDir(), "db"), &fake{}
			o := f.options()
			o.Key = key
			s := open(t, path, o)
			s.Note("cp", func(n *Notes) {
				n.Entry(k, secret)
				n.Member(set, "s", secret)
				n.Whole(set, false)
				n.Entry(entry("known-name"), resource("known-name", "1"))
			})
			closed(t, s)
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(file, []byte(marker)) {
				t.Error("the secret is in the file")
			}
			if has := bytes.Contains(file, []byte("known-name")); has != (key == nil) {
				t.Errorf("a name is in the file: %t", has)
			}
			s = open(t, path, o)
			defer closed(t, s)
			if is := s.Entry(k) != nil; is != (key != nil) {
				t.Errorf("the secret is stored: %t", is)
			}
			if is := s.Set(set).Whole(); is != (key != nil) {
				t.Errorf("the set with the secret counts as whole: %t", is)
			}
			if warned := strings.Contains(f.lines(), "set store.key_file"); warned != (key == nil) {
				t.Errorf("it is logged: %t", warned)
			}
		})
	}
}

func TestATTLOrDoNotCacheIsNotStored(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{}
	s := open(t, path, f.options())
	s.Note("cp", func(n *Notes) {
		n.Entry(entry("ttl"), resource("ttl", "1").WithTTL(time.Hour))
		n.Entry(entry("private"), cache.NewResource(cache.Spec{Name: "private", TypeURL: routeType, DoNotCache: true}))
	})
	closed(t, s)
	s = open(t, path, f.options())
	defer closed(t, s)
	if s.Entry(entry("ttl")) != nil || s.Entry(entry("private")) != nil {
		t.Error("it is stored")
	}
}

func TestWhatIsOlderThanMaxAgeIsNotReturned(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{}
	s := open(t, path, f.options())
	s.Note("cp", func(n *Notes) {
		n.now = n.now.Add(-2 * time.Hour)
		n.Entry(entry("old"), resource("old", "1"))
		n.Member(wildcard(), "old", resource("old", "1"))
		n.Whole(wildcard(), false)
	})
	closed(t, s)
	o := f.options()
	o.MaxAge = time.Hour
	s = open(t, path, o)
	defer closed(t, s)
	if s.Entry(entry("old")) != nil || s.Set(wildcard()).Whole() {
		t.Error("it is returned")
	}
	s.Configure(0, 0)
	if s.Entry(entry("old")) == nil || !s.Set(wildcard()).Whole() {
		t.Error("it is not returned, though there is no limit any more")
	}
	s.Configure(time.Hour, 0)
	if s.Entry(entry("old")) != nil || s.Set(wildcard()).Whole() {
		t.Error("it is returned, though there is a limit again")
	}
}

// Storing stops while the disk takes nothing, and the newest states are stored when it does again.
func TestAFullDiskStopsStoringOnly(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path, f := filepath.Join(dir, "db"), &fake{}
		var full bool
		var mu sync.Mutex
		o := f.options()
		o.update = func(db *bolt.DB, f func(*bolt.Tx) error) error {
			mu.Lock()
			defer mu.Unlock()
			if !full {
				return db.Update(f)
			}
			return db.Update(func(tx *bolt.Tx) error {
				_ = f(tx)
				return &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
			})
		}
		s := open(t, path, o)
		note := func(version string) {
			s.Note("cp", func(n *Notes) {
				n.Entry(entry("a"), resource("a", version))
				n.Member(wildcard(), "m", resource("m", version))
				n.Whole(wildcard(), false)
			})
		}
		is := func() string {
			r := s.Entry(entry("a"))
			if r == nil {
				return ""
			}
			return r.Resource.Version()
		}
		note("1")
		<-time.After(200 * time.Millisecond)
		if is() != "1" {
			t.Fatalf("200 ms later %q is stored", is())
		}
		setFull := func(is bool) { mu.Lock(); full = is; mu.Unlock() }
		setFull(true)
		note("2")
		<-time.After(time.Second)
		note("3")
		<-time.After(time.Minute)
		if is() != "1" || s.Stats().Failure == nil || s.Stats().Pending != 3 {
			t.Fatalf("with a full disk %q is stored: %+v", is(), s.Stats())
		}
		if n := strings.Count(f.lines(), "the disk is full"); n != 1 {
			t.Errorf("there are %d lines about it:\n%s", n, f.lines())
		}
		setFull(false)
		<-time.After(2 * time.Minute)
		if is() != "3" || s.Stats().Failure != nil || !strings.Contains(f.lines(), "stored again") {
			t.Errorf("when there is room again %q is stored: %+v", is(), s.Stats())
		}
		if got := versions(s.Set(wildcard())); got["m"] != "3" {
			t.Errorf("the set has %v", got)
		}
		closed(t, s)
	})
}

// The file does not become larger than max_bytes. What has no room is not stored in an older state
// either, and the set it is of does not count as whole.
func TestTheFileIsNotLargerThanMaxBytes(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{members: map[cache.Key]map[string]*cache.Resource{}}
	const limit = 1 << 20
	o := f.options()
	o.MaxBytes = limit
	s := open(t, path, o)
	large := func(name, version string) *cache.Resource {
		return cache.NewResource(cache.Spec{Name: name, Version: version, TypeURL: routeType, Value: []byte("\x0a\x80\x08" + strings.Repeat(version, 1024))})
	}
	members := map[string]*cache.Resource{}
	for i := range 3000 {
		name := fmt.Sprint(i)
		members[name] = large(name, fmt.Sprint(i%10))
	}
	f.members[wildcard()] = members
	s.Note("cp", func(n *Notes) {
		n.Entry(entry("first"), large("first", "1"))
		for name, r := range members {
			n.Member(wildcard(), name, r)
		}
		n.Whole(wildcard(), false)
	})
	if err := s.commitNow(); err != nil {
		t.Fatal(err)
	}
	closed(t, s)
	info, err := os.Stat(path)
	if err != nil || info.Size() > limit {
		t.Errorf("the file has %d bytes, and may have %d: %v", info.Size(), limit, err)
	}
	s = open(t, path, o)
	defer closed(t, s)
	if n := len(s.Set(wildcard()).Members); n < 100 || n == len(members) {
		t.Errorf("of %d members %d are stored", len(members), n)
	}
	if s.Set(wildcard()).Whole() {
		t.Error("a set without some of its members counts as whole")
	}
	if !strings.Contains(f.lines(), "max_bytes") {
		t.Errorf("nothing is logged:\n%s", f.lines())
	}
}

// A larger bound has room for what had none, and a smaller one for nothing new.
func TestAnotherMaxBytesHoldsAtOnce(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{members: map[cache.Key]map[string]*cache.Resource{}}
	const limit = 1 << 20
	o := f.options()
	o.MaxBytes = limit
	s := open(t, path, o)
	defer closed(t, s)
	large := func(name string) *cache.Resource {
		return cache.NewResource(cache.Spec{Name: name, Version: "1", TypeURL: routeType, Value: []byte("\x0a\x80\x08" + strings.Repeat("x", 1024))})
	}
	note := func(name string) {
		f.Lock()
		f.members[entry(name)] = map[string]*cache.Resource{name: large(name)}
		f.Unlock()
		s.Note("cp", func(n *Notes) { n.Entry(entry(name), large(name)) })
	}
	await := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %+v\n%s", what, s.Stats(), f.lines())
			}
		}
	}
	const names = 2000
	for i := range names {
		note(fmt.Sprint(i))
	}
	await("all of it has room", func() bool { return s.Stats().Lacking > 0 })
	s.Configure(0, 16*limit)
	await("what had no room is not stored", func() bool {
		for i := range names {
			if s.Entry(entry(fmt.Sprint(i))) == nil {
				return false
			}
		}
		return true
	})
	lacked := s.Stats().Lacking
	s.Configure(0, limit)
	note("new")
	await("there is still room", func() bool { return s.Stats().Lacking > lacked })
	if s.Entry(entry("new")) != nil {
		t.Error("what has no room is stored")
	}
}

func TestUnrequestedRecordsAreDeletedForRoom(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{members: map[cache.Key]map[string]*cache.Resource{}}
	o := f.options()
	o.MaxBytes = 1 << 20
	s := open(t, path, o)
	defer closed(t, s)
	s.Note("cp", func(n *Notes) {
		for i := range 2000 {
			name := "left" + fmt.Sprint(i)
			n.Entry(entry(name), cache.NewResource(cache.Spec{Name: name, Version: "1", TypeURL: routeType, Value: []byte("\x0a\x80\x08" + strings.Repeat("x", 1024))}))
		}
	})
	for end := time.Now().Add(time.Minute); s.Stats().Lacking == 0; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("all of it has room")
		}
	}
	s.Flush(time.Minute) // pruned is the writer's, which notes in it that it made room just now
	// More than what is left besides unrequested records.
	large := cache.NewResource(cache.Spec{Name: "new", Version: "1", TypeURL: routeType, Value: append([]byte("\x0a\x80\x80\x10"), strings.Repeat("x", 1<<18)...)})
	f.Lock()
	f.members[entry("new")] = map[string]*cache.Resource{"new": large}
	f.Unlock()
	s.pruned = time.Time{}
	for end := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		s.Note("cp", func(n *Notes) { n.Entry(entry("new"), large) })
		if s.Entry(entry("new")) != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("what is asked for has no room: %+v\n%s", s.Stats(), f.lines())
		}
	}
}

func TestTwoProcessesCannotShareAStore(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{}
	s := open(t, path, f.options())
	defer closed(t, s)
	if _, err := Open(path, f.options()); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), path) {
		t.Errorf("the second one gets %v", err)
	}
	if _, err := OpenReadOnly(path, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrInUse) {
		t.Errorf("one that reads gets %v", err)
	}
}

func TestAFileOfAnotherKeyIsSetAside(t *testing.T) {
	one, two := newKey(t), newKey(t)
	for _, test := range []struct {
		name          string
		before, after *Key
		line          string
	}{
		{"another key", one, two, "another key"},
		{"no key", one, nil, "there is no key file"},
		{"a key for a plain file", nil, two, "not encrypted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path, f := filepath.Join(dir, "db"), &fake{}
			o := f.options()
			o.Key = test.before
			s := open(t, path, o)
			s.Note("cp", func(n *Notes) { n.Entry(entry("a"), resource("a", "1")) })
			closed(t, s)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := Check(path, test.after, o.Log); err == nil || !strings.Contains(err.Error(), test.line) {
				t.Errorf("check says %v", err)
			}
			o.Key = test.after
			s = open(t, path, o)
			defer closed(t, s)
			if s.Entry(entry("a")) != nil {
				t.Error("the relay does not begin empty")
			}
			if !strings.Contains(f.lines(), test.line) || s.Stats().SetAside != 1 {
				t.Errorf("the log says:\n%s", f.lines())
			}
			aside, err := filepath.Glob(path + ".aside-*")
			if err != nil || len(aside) != 1 {
				t.Fatalf("there is %v: %v", aside, err)
			}
			if kept, err := os.ReadFile(aside[0]); err != nil || !slices.Equal(kept, before) {
				t.Errorf("the file that was set aside is not what it was: %v", err)
			}
		})
	}
}

// Check finds fault with a file where Open does, unless Open would set it aside, and changes nothing.
func TestCheckAgreesWithOpen(t *testing.T) {
	o := Options{Log: slog.New(slog.DiscardHandler)}
	stored := func(t *testing.T, path string) {
		t.Helper()
		s, err := Open(path, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write := func(content string, mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(content), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	mode := func(mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if os.Geteuid() == 0 {
				t.Skip("root may write everywhere")
			}
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Chmod(path, 0o700) })
		}
	}
	parent := func(f func(*testing.T, string)) func(*testing.T, string) {
		return func(t *testing.T, path string) { f(t, filepath.Dir(path)) }
	}
	for name, steps := range map[string][]func(*testing.T, string){
		"nothing":                          nil,
		"an empty file":                    {write("", 0o600)},
		"a store":                          {stored},
		"a read-only store":                {stored, mode(0o400)},
		"a store in a read-only folder":    {stored, parent(mode(0o500))},
		"nothing in a read-only folder":    {parent(mode(0o500))},
		"a file of another kind":           {write("something else", 0o600)},
		"the same in a read-only folder":   {write("something else", 0o600), parent(mode(0o500))},
		"a file that cannot be read":       {write("something else", 0o600), mode(0)},
		"a folder":                         {func(t *testing.T, path string) { _ = os.Mkdir(path, 0o700) }},
		"in a folder that is not there":    {parent(func(t *testing.T, folder string) { _ = os.Remove(folder) })},
		"in a folder that is a file":       {parent(func(t *testing.T, folder string) { _ = os.Remove(folder); write("", 0o600)(t, folder) })},
		"an empty file in another's place": {write("", 0o600), parent(mode(0o500))},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "folder")
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(folder, "db")
			for _, step := range steps {
				step(t, path)
			}
			files := func() string {
				of, _ := filepath.Glob(filepath.Join(folder, "*"))
				return strings.Join(of, " ")
			}
			before := files()
			_, _, wrong := Check(path, nil, o.Log)
			if after := files(); after != before {
				t.Errorf("there are the files %s, and were %s", after, before)
			}
			s, err := Open(path, o)
			if err == nil {
				_ = s.Close()
			}
			if (wrong == nil || SetsAside(wrong)) != (err == nil) {
				t.Errorf("Check says %v, and Open %v", wrong, err)
			}
			if aside := strings.Contains(files(), "aside"); aside != SetsAside(wrong) {
				t.Errorf("set aside: %t, and Check says %v", aside, wrong)
			}
		})
	}
}
