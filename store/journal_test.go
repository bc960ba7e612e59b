package store

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/xds-relay/xds-relay/cache"
)

// journaled is a store with a journal that is folded often, and what it should have.
type journaled struct {
	t       *testing.T
	r       *rand.Rand
	path    string
	o       Options
	store   *Store
	failing atomic.Bool // the disk takes nothing, now and then
	fake    fake
	entries map[string]string // versions
	members map[string]string
	whole   bool
	version int
}

func (j *journaled) update(db *bolt.DB, f func(*bolt.Tx) error) error {
	return db.Update(func(tx *bolt.Tx) error {
		if err := f(tx); err != nil || !j.failing.Load() || rand.IntN(2) == 0 {
			return err
		}
		return syscall.ENOSPC
	})
}

// note notes a few changes, as one response.
func (j *journaled) note() {
	var notes []func(*Notes)
	for range 1 + j.r.IntN(5) {
		j.version++
		version, name := strconv.Itoa(j.version), fmt.Sprint("n", j.r.IntN(12))
		switch j.r.IntN(8) {
		case 0:
			delete(j.entries, name)
			notes = append(notes, func(n *Notes) { n.Entry(entry(name), nil) })
		case 1:
			delete(j.members, "m"+name)
			notes = append(notes, func(n *Notes) { n.Member(wildcard(), "m"+name, nil) })
		case 2: // a full state, which lacks half of the members
			for member := range j.members {
				if j.r.IntN(2) == 0 {
					delete(j.members, member)
				}
			}
			j.whole = true
			notes = append(notes, func(n *Notes) { n.Whole(wildcard(), true) })
		case 3, 4:
			j.members["m"+name] = version
			notes = append(notes, func(n *Notes) { n.Member(wildcard(), "m"+name, resource("m"+name, version)) })
		default:
			j.entries[name] = version
			notes = append(notes, func(n *Notes) { n.Entry(entry(name), resource(name, version)) })
		}
	}
	cached := map[string]*cache.Resource{}
	for member, version := range j.members {
		cached[member] = resource(member, version)
	}
	j.fake.Lock()
	j.fake.members = map[cache.Key]map[string]*cache.Resource{wildcard(): cached}
	j.fake.Unlock()
	j.store.Note("cp", func(n *Notes) {
		for _, note := range notes {
			note(n)
		}
	})
}

// written waits until all is written.
func (j *journaled) written() {
	for j.store.Stats().Pending > 0 || j.store.Stats().Failure != nil {
		time.Sleep(time.Minute)
	}
	j.store.Flush(time.Minute)
}

// check compares what a store has.
func (j *journaled) check(when string, s *Store) {
	j.t.Helper()
	entries := map[string]string{}
	for i := range 12 {
		if r := s.Entry(entry(fmt.Sprint("n", i))); r != nil {
			entries[r.Topic.Name] = r.Resource.Version()
		}
	}
	set := s.Set(wildcard())
	if members := versions(set); !maps.Equal(entries, j.entries) || !maps.Equal(members, j.members) || set.Whole() != j.whole {
		j.t.Fatalf("%s: the store has\n%v and %v (whole: %t), want\n%v and %v (whole: %t)", when, entries, members, set.Whole(), j.entries, j.members, j.whole)
	}
	all, last := 0, ""
	unreadable, err := s.All(func(r *Record) bool {
		key, err := s.keys.of(r)
		if err != nil || string(key) <= last {
			j.t.Fatalf("%s: %s comes too late (%v)", when, r, err)
		}
		all, last = all+1, string(key)
		return true
	})
	want := len(j.entries) + len(j.members)
	if j.whole {
		want++
	}
	if all != want || unreadable != 0 || err != nil {
		j.t.Fatalf("%s: there are %d records, of which %d cannot be read (%v); want %d", when, all, unreadable, err, want)
	}
	if n, _, err := s.Export(io.Discard); n != want || err != nil {
		j.t.Fatalf("%s: %d records were exported (%v), want %d", when, n, err, want)
	}
}

// killed opens the file as it would be found if the process had been killed now.
func (j *journaled) killed(when string) {
	j.t.Helper()
	content, err := os.ReadFile(j.path)
	if err != nil {
		j.t.Fatal(err)
	}
	path := j.path + ".killed"
	if err := os.WriteFile(path, content, fileMode); err != nil {
		j.t.Fatal(err)
	}
	s, err := OpenReadOnly(path, j.o.Key, j.o.Log)
	if err != nil {
		j.t.Fatalf("%s: %v", when, err)
	}
	j.check(when+", killed", s)
	if err := s.Close(); err != nil {
		j.t.Fatal(err)
	}
}

// With a journal, a store has what it would have without: at any moment, after any end, and on a disk that
// takes only some of what is written.
func TestAStoreHasTheSameWithAJournal(t *testing.T) {
	seeds := uint64(25)
	if testing.Short() {
		seeds = 5
	}
	for kind, key := range keysToTest(t) {
		folded, kept := 0, 0
		for seed := range seeds {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				j := &journaled{
					t: t, r: rand.New(rand.NewPCG(seed, 1)), path: filepath.Join(dir, "db"), entries: map[string]string{}, members: map[string]string{},
				}
				j.o = j.fake.options()
				j.o.Key, j.o.update, j.o.journalBytes = key, j.update, 1+j.r.IntN(4000)
				j.store = open(t, j.path, j.o)
				for step := range 60 {
					when := fmt.Sprintf("%s, seed %d, step %d", kind, seed, step)
					j.failing.Store(j.r.IntN(4) == 0)
					j.note()
					if j.r.IntN(3) == 0 {
						continue
					}
					time.Sleep(time.Second)
					j.failing.Store(false)
					j.written()
					j.check(when, j.store)
					if j.store.journal.empty() {
						folded++
					} else {
						kept++
					}
					switch j.r.IntN(6) {
					case 0:
						j.killed(when)
					case 1:
						closed(t, j.store)
						j.o.MaxBytes = 0
						if j.r.IntN(4) == 0 {
							j.o.MaxBytes = 64 << 20 // too little for a journal
						}
						j.store = open(t, j.path, j.o)
						j.check(when+", closed", j.store)
					case 2: // killed, and started again
						content, err := os.ReadFile(j.path)
						if err != nil {
							t.Fatal(err)
						}
						closed(t, j.store)
						overwrite(t, j.path, content)
						j.store = open(t, j.path, j.o)
						j.check(when+", started again", j.store)
					case 3:
						j.store.Configure(0, 64<<20*int64(j.r.IntN(2)))
					}
				}
				closed(t, j.store)
			})
		}
		if folded < 50 || kept < 50 {
			t.Errorf("%s: the journal was empty %d times, and not %d times: the test does not find what it is for", kind, folded, kept)
		}
	}
}

// Who reads while the journal is folded has what was written last, or something newer.
func TestWhatIsReadWhileTheJournalIsFoldedIsNotOlder(t *testing.T) {
	f := &fake{}
	o := f.options()
	o.journalBytes = 200
	s := open(t, filepath.Join(t.TempDir(), "db"), o)
	var least atomic.Int64
	var ended sync.WaitGroup
	for range 2 {
		ended.Go(func() {
			for {
				was := least.Load()
				if was < 0 {
					return
				}
				r, set := s.Entry(entry("a")), s.Set(wildcard())
				if was == 0 {
					continue
				}
				if r == nil || len(set.Members) != 1 || !set.Whole() {
					t.Errorf("%v and %v are read", r, set)
					return
				}
				for _, r := range []*Record{r, set.Members[0]} {
					if version, _ := strconv.ParseInt(r.Resource.Version(), 10, 64); version < was {
						t.Errorf("version %d is read after version %d was written", version, was)
						return
					}
				}
			}
		})
	}
	for i := range int64(300) {
		version := strconv.FormatInt(i+1, 10)
		s.Note("cp", func(n *Notes) {
			n.Entry(entry("a"), resource("a", version))
			n.Member(wildcard(), "m", resource("m", version))
			n.Whole(wildcard(), false)
		})
		s.Flush(time.Minute)
		least.Store(i + 1)
	}
	least.Store(-1)
	ended.Wait()
	closed(t, s)
}
