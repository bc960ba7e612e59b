package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
)

// Options are a Store's settings.
type Options struct {
	// Key encrypts the store, nil for none. Without it resources with secrets in them are not
	// stored.
	Key *Key
	// MaxBytes bounds the file, 0 for no bound. What has no room is not stored.
	MaxBytes int64
	// MaxAge is how old a record is that is not returned any more, 0 for no limit.
	MaxAge time.Duration
	// Contents yields what the cache has of a topic, with the members' keys, and Watched reports
	// whether it has the topic. They are called by the goroutine that writes, with no locks
	// held.
	Contents func(k cache.Key, yield func(key string, r *cache.Resource))
	Watched  func(cache.Key) bool
	Log      *slog.Logger

	// For tests: update is that of the database, with noSync nothing waits for the disk, and the journal has
	// at most journalBytes.
	update       func(*bolt.DB, func(*bolt.Tx) error) error
	noSync       bool
	journalBytes int
}

// Store is an open store. Its methods may be called concurrently.
type Store struct {
	path string
	opts Options
	log  *slog.Logger
	// file is replaced by the goroutine that writes, which holds mu then, and uses it without. Others enter it.
	*file
	closing sync.WaitGroup // counts files that were replaced, and are still read

	wake chan struct{} // has room for one
	stop chan struct{}
	done chan struct{}
	// flush has who waits until what is noted is written. It closes the channel then.
	flush chan chan<- struct{}
	// rekeys has who wants another key.
	rekeys chan rekeying

	mu sync.Mutex // comes last
	// noted is what is not written yet, without what is being written.
	noted   *notes
	writing bool
	spare   *notes // for what is noted next

	// maxAge and maxBytes are as in Options, by the newest Configure. The goroutine that writes puts
	// maxBytes into opts.
	maxAge, maxBytes atomic.Int64

	stats  counters
	unread loglines.Shared // lines about records that cannot be read

	buffers buffers // of the goroutine that writes

	// Of the goroutine that writes: what it wrote last; when it was last logged that something is not stored, the
	// topics that have had no room, and when records were last given up for them; and the topics that have secrets,
	// while there is no key.
	latest  latest
	logged  time.Time
	lacking map[cache.Key]struct{}
	pruned  time.Time
	secret  map[cache.Key]struct{}
}

// file is a database with its journal, and what its records are sealed with.
type file struct {
	db      *bolt.DB
	journal *journal
	key     *Key // nil for none
	keys    keys
	seals   sealed
	readers sync.WaitGroup
}

func newFile(db *bolt.DB, j *journal, key *Key) *file {
	f := &file{db: db, journal: j, key: key, seals: sealedBy(key), keys: keys{hash: plainHash}}
	if key != nil {
		f.keys.hash = key.hash
	}
	return f
}

// enter returns the file, which stays open until leave.
func (s *Store) enter() *file {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers.Add(1)
	return s.file
}

func (f *file) leave() { f.readers.Done() }

// counters are the parts of Stats that change.
type counters struct {
	written, bytes, commits, failures, unreadable, lacking, secrets, setAside atomic.Uint64
	size                                                                      atomic.Int64
	failing                                                                   atomic.Bool
}

// Stats are what a store has done since it was opened.
type Stats struct {
	// Written and Bytes count the records that were written, with the bytes in them; Commits the
	// transactions, and Failures those that failed.
	Written, Bytes, Commits, Failures uint64
	// Unreadable counts the records that could not be read.
	Unreadable uint64
	// Lacking counts the resources that had no room, and Secrets those that were not stored
	// because there is no key.
	Lacking, Secrets uint64
	// SetAside counts the files that could not be used and were renamed.
	SetAside uint64
	// Failing says that the last transaction failed.
	Failing bool
	// Size is the size of the database in bytes, and Pending how many records are not written
	// yet.
	Size    int64
	Pending int
}

// Open opens a store, or makes one. A file that cannot be used is renamed, and the store begins
// empty. Errors are those of the disk, and ErrInUse.
func Open(path string, o Options) (*Store, error) {
	s := &Store{path: path, opts: o, log: o.Log.With("store", path), noted: newNotes(), lacking: map[cache.Key]struct{}{}, secret: map[cache.Key]struct{}{}}
	db, j, err := openFile(path, o, false)
	var damaged *unusableError
	if errors.As(err, &damaged) {
		aside, renamed := setAside(path, time.Now())
		if renamed != nil {
			return nil, fmt.Errorf("%s cannot be used: %w; and it cannot be renamed: %w", path, err, renamed)
		}
		s.log.Error("the store cannot be used and was set aside: the relay begins with an empty one", "reason", damaged.reason, "renamed_to", aside)
		s.stats.setAside.Add(1)
		db, j, err = openFile(path, o, false)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	_ = os.Remove(path + rekeyed) // of a process that was killed
	s.use(db, j)
	s.Configure(o.MaxAge, o.MaxBytes)
	s.wake, s.stop, s.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	s.flush, s.rekeys = make(chan chan<- struct{}), make(chan rekeying)
	go s.write()
	return s, nil
}

// OpenReadOnly opens a store for who looks into it. It is an error if the file cannot be used.
func OpenReadOnly(path string, key *Key, log *slog.Logger) (*Store, error) {
	o := Options{Key: key, Log: log}
	db, j, err := openFile(path, o, true)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := &Store{path: path, opts: o, log: log, noted: newNotes()}
	s.use(db, j)
	return s, nil
}

func (s *Store) use(db *bolt.DB, j *journal) {
	if s.opts.update == nil {
		s.opts.update = (*bolt.DB).Update
	}
	if s.opts.journalBytes == 0 {
		s.opts.journalBytes = journalBytes
	}
	s.file = newFile(db, j, s.opts.Key)
	_ = db.View(func(tx *bolt.Tx) error { s.stats.size.Store(tx.Size()); return nil })
}

// Configure has other settings than those of Options hold from now on. A file that is larger than
// maxBytes keeps its size, and does not grow. If there is more room now, what had none is stored.
func (s *Store) Configure(maxAge time.Duration, maxBytes int64) {
	s.maxAge.Store(int64(maxAge))
	if s.maxBytes.Swap(maxBytes) == maxBytes {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default: // it is awake
	}
}

// Close writes what is not written yet, and closes the file.
func (s *Store) Close() error {
	if s.stop != nil {
		close(s.stop)
		<-s.done
	}
	s.closing.Wait()
	return s.db.Close()
}

// Stats returns what the store has done.
func (s *Store) Stats() Stats {
	c := &s.stats
	s.mu.Lock()
	pending := s.noted.count
	s.mu.Unlock()
	return Stats{
		Written: c.written.Load(), Bytes: c.bytes.Load(), Commits: c.commits.Load(), Failures: c.failures.Load(),
		Unreadable: c.unreadable.Load(), Lacking: c.lacking.Load(), Secrets: c.secrets.Load(), SetAside: c.setAside.Load(),
		Failing: c.failing.Load(), Size: c.size.Load(), Pending: pending,
	}
}

// Entry returns the record of a name, nil if there is none.
func (s *Store) Entry(k cache.Key) *Record {
	wanted := &Record{Topic: k}
	var found *Record
	of := s.enter()
	defer of.leave()
	key, err := of.keys.of(wanted)
	if err != nil {
		s.unreadable(err)
		return nil
	}
	s.view(of, func(v *view) {
		if r := s.read(of, key, v.get(key)); r != nil && r.is(wanted) && !s.tooOld(r) {
			found = r
		}
	}, key)
	return found
}

// Set is what the store has of a set.
type Set struct {
	// Record is the set's own, nil if the set was not known as a whole.
	Record *Record
	// Members are those that are stored. Lacks says that there are others.
	Members []*Record
	Lacks   bool
}

// Whole reports whether the set is as the control plane last had it.
func (s *Set) Whole() bool { return s.Record != nil && !s.Lacks }

// Set returns what the store has of a set.
func (s *Store) Set(k cache.Key) *Set {
	var set Set
	wanted := &Record{Topic: k, Set: true}
	of := s.enter()
	defer of.leave()
	key, err := of.keys.of(wanted)
	if err != nil {
		s.unreadable(err)
		return &set
	}
	prefix := append([]byte{memberKind}, key[1:]...)
	s.view(of, func(v *view) {
		if r := s.read(of, key, v.get(key)); r != nil && r.is(wanted) {
			set.Record = r
		}
		v.all(prefix, func(key, value []byte) bool {
			switch r := s.read(of, key, value); {
			case r == nil || r.Topic != k || r.Resource == nil, s.tooOld(r):
				set.Lacks = true
			default:
				set.Members = append(set.Members, r)
			}
			return true
		})
	}, key, prefix)
	return &set
}

// Encrypted reports whether there is a key.
func (s *Store) Encrypted() bool { return !s.HasKey(nil) }

// HasKey reports whether a key is that of the store; nil is none.
func (s *Store) HasKey(key *Key) bool {
	of := s.enter()
	defer of.leave()
	return of.key.equal(key)
}

// All yields every record, those of one set one after another. It returns how many could not be
// read.
func (s *Store) All(yield func(*Record) bool) (unreadable int, err error) {
	of := s.enter()
	defer of.leave()
	err = of.viewAll(func(key, value []byte) bool {
		r := s.read(of, key, value)
		if r == nil {
			unreadable++
			return true
		}
		return yield(r)
	})
	return unreadable, err
}

// viewAll yields all records as they are stored.
func (f *file) viewAll(yield func(key, value []byte) bool) error {
	return f.view(func(v *view) { v.all(nil, yield) })
}

// view reads the records of some keys, and of those that begin with one of them; without keys, all.
func (f *file) view(do func(*view), keys ...[]byte) error {
	return guard(func() error {
		tx, places, err := f.begin(keys)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // it is open
		do(viewOf(tx, places))
		return nil
	})
}

// begin begins a transaction that reads. The places are of the same moment: the journal is locked, so the transactions
// that fold what is not in the places begin later.
func (f *file) begin(keys [][]byte) (*bolt.Tx, map[string]place, error) {
	f.journal.mu.Lock()
	defer f.journal.mu.Unlock()
	tx, err := f.db.Begin(false)
	if err != nil {
		return nil, nil, err
	}
	return tx, f.journal.of(keys...), nil
}

// Served yields the scopes of which something is stored that can be served: for each name, and for each
// set with members that is whole. It yields a scope again and again.
func (s *Store) Served(yield func(cache.Scope) bool) error {
	sets, more := map[cache.Key]bool{}, true
	_, err := s.All(func(r *Record) bool {
		switch {
		case r.Set, r.Resource == nil, s.tooOld(r):
		case !r.isMember():
			more = yield(r.Topic.Scope)
		default:
			sets[r.Topic] = true
		}
		return more
	})
	for set := range sets {
		if more && s.Set(set).Whole() {
			more = yield(set.Scope)
		}
	}
	return err
}

// view reads the records of some keys, and of those that begin with one of them. A damage that shows only now is
// logged.
func (s *Store) view(of *file, f func(*view), keys ...[]byte) {
	if err := of.view(f, keys...); err != nil {
		s.unreadable(err)
	}
}

func (s *Store) unreadable(err error) {
	s.stats.unreadable.Add(1)
	s.log.Error("the store could not be read", "reason", err)
}

// read decodes a record, nil if there is none that can be read.
func (s *Store) read(of *file, key, value []byte) *Record {
	if value == nil {
		return nil
	}
	r, err := of.open(key, value)
	if err != nil {
		s.stats.unreadable.Add(1)
		if log, ok := s.unread.Next(s.log); ok {
			log.Error("a record in the store cannot be read, and is not used", "reason", err, "key", fmt.Sprintf("%x", key))
		}
		return nil
	}
	return r
}

// open decodes a record. It is that of its key, as the two were sealed together.
func (f *file) open(key, value []byte) (*Record, error) {
	content, err := f.seals.open(key, value)
	if err != nil {
		return nil, err
	}
	return decode(content)
}

// tooOld reports whether a record is older than MaxAge.
func (s *Store) tooOld(r *Record) bool {
	most := time.Duration(s.maxAge.Load())
	return most > 0 && time.Since(r.Time) > most
}

// Check returns what is wrong with a file, nil if it can be used or is not there yet. unreadable is
// how many of its records cannot be read.
func Check(path string, key *Key, log *slog.Logger) (records, unreadable int, err error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return 0, 0, nil
	}
	s, err := OpenReadOnly(path, key, log)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = s.Close() }()
	unreadable, err = s.All(func(*Record) bool { records++; return true })
	return records, unreadable, err
}
