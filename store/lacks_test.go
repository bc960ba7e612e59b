package store

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/xds-relay/xds-relay/cache"
)

// A set with a member that is not stored is not whole in a copy of the store either: clients would lose that member.
func TestWhatASetLacksItLacksInACopy(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{}
	f.members = map[cache.Key]map[string]*cache.Resource{}
	s := open(t, path, f.options())
	s.Note("cp", func(n *Notes) {
		n.Member(wildcard(), "m1", resource("m1", "1"))
		n.Member(wildcard(), "ttl", resource("ttl", "1").WithTTL(time.Hour))
		n.Whole(wildcard(), false)
	})
	s.Flush(time.Minute)
	check := func(when string, s *Store) {
		t.Helper()
		if set := s.Set(wildcard()); set.Whole() || len(set.Members) != 1 {
			t.Errorf("%s: the set has %v, whole: %t", when, versions(set), set.Whole())
		}
	}
	check("stored", s)
	if err := s.Rekey(newKey(t), 0); err != nil {
		t.Fatal(err)
	}
	check("with another key", s)
	if err := s.Rekey(nil, 0); err != nil {
		t.Fatal(err)
	}
	var exported bytes.Buffer
	if _, _, err := s.Export(&exported); err != nil {
		t.Fatal(err)
	}
	closed(t, s)
	path += ".imported"
	if _, err := Import(path, nil, &exported, f.options().Log); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, f.options())
	defer closed(t, s)
	check("imported", s)
}

// Nor is a set with a member that cannot be read, when that member has been left out or given up.
func TestASetThatHasLostAMemberIsNeverWhole(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{}
	s := open(t, path, f.options())
	s.Note("cp", func(n *Notes) {
		n.Member(wildcard(), "m1", resource("m1", "1"))
		n.Member(wildcard(), "m2", resource("m2", "1"))
		n.Whole(wildcard(), false)
	})
	closed(t, s)
	db, err := bolt.Open(path, fileMode, &bolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bolt.Tx) error {
		records := tx.Bucket(recordsBucket)
		key, value := records.Cursor().Seek([]byte{memberKind})
		value = bytes.Clone(value)
		value[len(value)-1] ^= 1
		return records.Put(bytes.Clone(key), value)
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	check := func(when string, s *Store) {
		t.Helper()
		if set := s.Set(wildcard()); set.Whole() || len(set.Members) != 1 {
			t.Errorf("%s: the set has %v, whole: %t", when, versions(set), set.Whole())
		}
	}
	f.members = map[cache.Key]map[string]*cache.Resource{wildcard(): {"m1": nil}}
	for name, without := range map[string]func(s *Store) error{
		"rekeyed": func(s *Store) error { return s.Rekey(nil, 0) },
		"pruned":  func(s *Store) error { _, err := s.prune(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			of := filepath.Join(t.TempDir(), "db")
			if err := os.WriteFile(of, content, fileMode); err != nil {
				t.Fatal(err)
			}
			s := open(t, of, f.options())
			defer closed(t, s)
			check("before", s)
			var exported bytes.Buffer
			if _, unreadable, err := s.Export(&exported); unreadable != 1 || err != nil {
				t.Errorf("%d cannot be read (%v)", unreadable, err)
			}
			if err := without(s); err != nil {
				t.Fatal(err)
			}
			check(name, s)
			imported := of + ".imported"
			if _, err := Import(imported, nil, &exported, f.options().Log); err != nil {
				t.Fatal(err)
			}
			copied := open(t, imported, f.options())
			defer closed(t, copied)
			check("imported", copied)
		})
	}
}

// A part of the journal needs adjacent free pages. If a file that may not grow has only others, changes are written
// to the records' places, and nothing is deleted.
func TestWithoutRoomForAPartOfTheJournalNothingIsDeleted(t *testing.T) {
	f := &fake{}
	o := f.options()
	o.MaxBytes = journalRoom
	scattered := false
	o.update = func(db *bolt.DB, f func(*bolt.Tx) error) error {
		return db.Update(func(tx *bolt.Tx) error {
			if err := f(tx); err != nil || !scattered {
				return err
			}
			journal := tx.Bucket(journalBucket)
			if journal == nil {
				return nil
			}
			return journal.ForEach(func(key, _ []byte) error {
				if len(journal.Bucket(key).Get(valuesKey)) > os.Getpagesize() {
					return berrors.ErrMaxSizeReached
				}
				return nil
			})
		})
	}
	path := filepath.Join(t.TempDir(), "db")
	s := open(t, path, o)
	defer closed(t, s)
	const names = 1000
	for _, version := range []string{"1", "2"} {
		s.Note("cp", func(n *Notes) {
			for i := range names {
				name := fmt.Sprint(i)
				n.Entry(entry(name), resource(name, version))
			}
		})
		s.Flush(time.Minute)
		for i := range names {
			if r := s.Entry(entry(fmt.Sprint(i))); r == nil || r.Resource.Version() != version {
				t.Fatalf("%d is not stored in version %s: %v", i, version, r)
			}
		}
		if err := s.Rekey(nil, o.MaxBytes); err != nil { // without a journal
			t.Fatal(err)
		}
		scattered = true
	}
	if is := s.Stats(); is.Lacking+is.Failures > 0 {
		t.Errorf("%d had no room, and %d transactions failed", is.Lacking, is.Failures)
	}
}

// A transaction may take effect although the disk reported an error, as when the disk could not confirm the last
// write. Later changes are stored, and the file stays valid.
func TestATransactionThatFailedButTookEffectDoesNoHarm(t *testing.T) {
	f := &fake{}
	o := f.options()
	o.journalBytes = 1 << 10 // each commit is folded
	var transactions, fails int
	o.update = func(db *bolt.DB, f func(*bolt.Tx) error) error {
		if err := db.Update(f); err != nil {
			return err
		}
		if transactions++; transactions == fails {
			return syscall.EIO
		}
		return nil
	}
	for failing := 1; failing <= 5; failing++ {
		t.Run(fmt.Sprint(failing), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "db")
				s := open(t, path, o)
				transactions, fails = 0, failing
				versions := map[string]string{}
				for round := range 4 {
					s.Note("cp", func(n *Notes) {
						for i := range 50 + 10*round {
							name := fmt.Sprint(i)
							versions[name] = fmt.Sprint(round)
							n.Entry(entry(name), resource(name, fmt.Sprint(round)))
						}
					})
					time.Sleep(time.Hour)
					if is := s.Stats(); is.Pending > 0 || is.Failure != nil {
						t.Fatalf("nothing is stored any more: %+v", is)
					}
				}
				closed(t, s)
				o := o
				o.update = nil
				s = open(t, path, o)
				defer closed(t, s)
				if s.Stats().SetAside > 0 {
					t.Error("the file cannot be used")
				}
				for name, version := range versions {
					if r := s.Entry(entry(name)); r == nil || r.Resource.Version() != version {
						t.Errorf("%s is not stored in version %s: %v", name, version, r)
					}
				}
			})
		})
	}
}

// A reader of a set gets all of its members in one state, even while the set is written and the journal folded in
// several transactions.
func TestASetIsReadAsItWasAtOneMoment(t *testing.T) {
	const members = 40
	f := &fake{}
	o := f.options()
	o.journalBytes = 1
	s := open(t, filepath.Join(t.TempDir(), "db"), o)
	defer closed(t, s)
	value := make([]byte, foldBytes/members+foldBytes/members/4)
	note := func(round int) {
		s.Note("cp", func(n *Notes) {
			for i := range members {
				name := fmt.Sprint(round, "-", i)
				n.Member(wildcard(), fmt.Sprint(round-1, "-", i), nil)
				n.Member(wildcard(), name, cache.NewResource(cache.Spec{Name: name, Version: fmt.Sprint(round), TypeURL: routeType, Value: value}))
			}
			n.Whole(wildcard(), false)
		})
		s.Flush(time.Minute)
	}
	note(0)
	var reading sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		reading.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if set := s.Set(wildcard()); !set.Whole() || len(set.Members) != members {
					t.Errorf("the set has %d members, whole: %t", len(set.Members), set.Whole())
					return
				}
			}
		})
	}
	for round := range 6 {
		note(round + 1)
	}
	close(stop)
	reading.Wait()
}
