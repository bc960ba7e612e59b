package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Options are a Store's settings.
type Options struct {
	// Key encrypts the store, nil for none. Without it resources with secrets in them are not
	// stored.
	Key *Key
	// MaxBytes bounds the file, 0 for no bound. Resources that do not fit are not stored.
	MaxBytes int64
	// MaxAge is the age from which on a record is no longer returned, 0 for no limit.
	MaxAge time.Duration
	// Topics iterates over the topics that the cache has of the scopes that are stored. Contents iterates over the cache's resources of a topic, with the members' keys. Watched reports whether the
	// cache has the topic. The goroutine that writes calls them with no locks held. Topics may be nil.
	Topics   func(yield func(cache.Key))
	Contents func(k cache.Key, yield func(key string, r *cache.Resource))
	Watched  func(cache.Key) bool
	Log      *slog.Logger

	// For tests: update replaces the database's Update, noSync skips waiting for the disk, and journalBytes bounds
	// the journal.
	update       func(*bolt.DB, func(*bolt.Tx) error) error
	noSync       bool
	journalBytes int
}

// Store is an open store. Its methods may be called concurrently.
type Store struct {
	path string
	opts Options
	log  *slog.Logger
	// file is the current file. The goroutine that writes holds mu while it replaces it, and uses it without mu.
	// Others call enter.
	*file
	closing sync.WaitGroup // counts replaced files that still have readers

	wake chan struct{} // has capacity 1
	stop chan struct{}
	done chan struct{}
	// flush carries the channels of the callers of Flush. The goroutine that writes closes a channel once everything
	// noted before is written.
	flush chan chan<- struct{}
	// rekeys carries the calls of Rekey.
	rekeys chan rekeying

	mu sync.Mutex // comes last
	// noted has the notes that are not written yet, without those that are being written.
	noted   *notes
	writing bool
	spare   *notes // the next value of noted

	// maxAge and maxBytes are as in Options, by the newest call of Configure. The goroutine that writes copies
	// maxBytes into opts.
	maxAge, maxBytes atomic.Int64

	stats  counters
	unread loglines.Shared // lines about records that cannot be read

	buffers buffers // used by the goroutine that writes

	// Used by the goroutine that writes: the records written last; when it last logged that something is not stored;
	// the topics without room, and when it last deleted records to make room; and the topics with secrets, while
	// there is no key.
	latest  latest
	logged  time.Time
	lacking map[cache.Key]struct{}
	pruned  time.Time
	renewed time.Time // when it last replaced a file that could not be used any more
	secret  map[cache.Key]struct{}
}

// file is a database with its journal, and the means to seal its records.
type file struct {
	db      *bolt.DB
	journal *journal
	key     *Key // nil for none
	keys    keys
	seals   sealed
	readers sync.WaitGroup
	breakage
}

func newFile(db *bolt.DB, j *journal, key *Key) *file {
	f := &file{db: db, journal: j, key: key, seals: sealedBy(key), keys: keys{hash: plainHash}}
	if key != nil {
		f.keys.hash = key.hash
	}
	return f
}

// enter returns the current file, which stays open until leave.
func (s *Store) enter() *file {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers.Add(1)
	return s.file
}

func (f *file) leave() { f.readers.Done() }

// counters are the fields of Stats that change.
type counters struct {
	written, bytes, commits, failures, unreadable, lacking, secrets, setAside atomic.Uint64
	size                                                                      atomic.Int64
	failure                                                                   atomic.Pointer[Failure]
}

// Stats are a store's numbers since it was opened.
type Stats struct {
	// Written is the number of records that were written, and Bytes their size. Commits is the number of
	// transactions, and Failures the number of those that failed.
	Written, Bytes, Commits, Failures uint64
	// Unreadable counts the records that could not be read.
	Unreadable uint64
	// Lacking counts the resources that did not fit, and Secrets those that were not stored because there is no key.
	Lacking, Secrets uint64
	// SetAside counts the files that could not be used and were renamed.
	SetAside uint64
	// Failure is why the last transaction failed, nil if it did not.
	Failure *Failure
	// Size is the size of the database in bytes. Pending is the number of records that are not written yet.
	Size    int64
	Pending int
}

// Open opens a store, or creates one. It renames a file that cannot be used, and starts with an empty store. It
// returns ErrInUse or errors of the disk.
func Open(path string, o Options) (*Store, error) {
	s := &Store{path: path, opts: o, log: o.Log.With("store", path), noted: newNotes(), lacking: map[cache.Key]struct{}{}, secret: map[cache.Key]struct{}{}}
	f, err := openFile(path, o, false)
	if SetsAside(err) {
		aside, renamed := setAside(path, time.Now())
		if renamed != nil {
			return nil, fmt.Errorf("%s cannot be used: %w; and it cannot be renamed: %w", path, err, renamed)
		}
		s.log.Error("the store cannot be used and was set aside: the relay begins with an empty one", "reason", err, "renamed_to", aside)
		s.stats.setAside.Add(1)
		f, err = openFile(path, o, false)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	_ = os.Remove(path + rekeyed) // a killed process may have left it
	s.use(f)
	s.Configure(o.MaxAge, o.MaxBytes)
	s.wake, s.stop, s.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	s.flush, s.rekeys = make(chan chan<- struct{}), make(chan rekeying)
	go s.write()
	return s, nil
}

// OpenReadOnly opens a store for inspection. It returns an error if the file cannot be used.
func OpenReadOnly(path string, key *Key, log *slog.Logger) (*Store, error) {
	o := Options{Key: key, Log: log}
	f, err := openFile(path, o, true)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := &Store{path: path, opts: o, log: log, noted: newNotes()}
	s.use(f)
	return s, nil
}

func (s *Store) use(f *file) {
	if s.opts.update == nil {
		s.opts.update = (*bolt.DB).Update
	}
	if s.opts.journalBytes == 0 {
		s.opts.journalBytes = journalBytes
	}
	s.file = f
	s.stats.size.Store(f.seen.Load().size)
}

// Configure replaces settings of Options. A file larger than maxBytes keeps its size and does not grow. If there is
// more room now, the store writes the resources that did not fit before.
func (s *Store) Configure(maxAge time.Duration, maxBytes int64) {
	s.maxAge.Store(int64(maxAge))
	if s.maxBytes.Swap(maxBytes) == maxBytes {
		return
	}
	s.rouse()
}

// rouse wakes the goroutine that writes.
func (s *Store) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake already
	}
}

// SetsAside reports whether Open renames a file of which [Check] has returned this error, and begins with an empty one.
func SetsAside(err error) bool {
	var damaged *unusableError
	return errors.As(err, &damaged)
}

// Close writes all notes, and closes the file.
func (s *Store) Close() error {
	if s.stop != nil {
		close(s.stop)
		<-s.done
	}
	s.closing.Wait()
	return s.file.close()
}

// Stats returns the store's numbers.
func (s *Store) Stats() Stats {
	c := &s.stats
	s.mu.Lock()
	pending := s.noted.count
	s.mu.Unlock()
	return Stats{
		Written: c.written.Load(), Bytes: c.bytes.Load(), Commits: c.commits.Load(), Failures: c.failures.Load(),
		Unreadable: c.unreadable.Load(), Lacking: c.lacking.Load(), Secrets: c.secrets.Load(), SetAside: c.setAside.Load(),
		Failure: c.failure.Load(), Size: c.size.Load(), Pending: pending,
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

// Set has the store's records of a set.
type Set struct {
	// Record is the set's own record, nil if the set was not completely known.
	Record *Record
	// Members are the stored members. Lacks: the set has other members, which are not stored.
	Members []*Record
	Lacks   bool
}

// Whole reports whether the stored set is complete: the control plane's last known state.
func (s *Set) Whole() bool { return s.Record != nil && !s.Lacks }

// Set returns the store's records of a set.
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

// HasKey reports whether this is the store's key; nil stands for no key.
func (s *Store) HasKey(key *Key) bool {
	of := s.enter()
	defer of.leave()
	return of.key.equal(key)
}

// All iterates over all records. Those of one set follow each other. It returns how many records could not be read.
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

// viewAll iterates over all records in their stored form.
func (f *file) viewAll(yield func(key, value []byte) bool) error {
	return f.view(func(v *view) { v.all(nil, yield) })
}

// view gives do the records whose keys are, or begin with, one of these keys; without
func (f *file) view(do func(*view), keys ...[]byte) error {
	return f.read(func(tx *bolt.Tx, places map[string]place) error {
		do(viewOf(tx, places))
		return nil
	}, keys...)
}

// read runs a transaction that reads.
func (f *file) read(do func(*bolt.Tx, map[string]place) error, keys ...[]byte) error {
	tx, places, err := f.begin(keys)
	if err != nil {
		return err
	}
	entered := true
	err = guard(func() error {
		defer func() { _ = tx.Rollback() }() // the transaction is open
		err := do(tx, places)
		entered = false
		return err
	})
	if entered { // it has panicked
		f.fail(err)
	}
	return err
}

// begin begins a read transaction. The places belong to the same state: begin holds the journal's lock, so that
// transactions that fold other records begin later.
func (f *file) begin(keys [][]byte) (*bolt.Tx, map[string]place, error) {
	f.journal.mu.Lock()
	defer f.journal.mu.Unlock()
	if err := f.check(); err != nil {
		return nil, nil, err
	}
	var tx *bolt.Tx
	entered := true
	err := guard(func() (err error) {
		tx, err = f.db.Begin(false)
		entered = false
		return err
	})
	if entered { // it has panicked
		f.locked.Store(true)
		f.fail(err)
	}
	if err != nil {
		return nil, nil, err
	}
	return tx, f.journal.of(keys...), nil
}

// Served iterates over the scopes with stored resources that can be served: it yields a scope for each name, and for
// each complete set with members. So it repeats scopes.
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

// view gives f the records whose keys are, or begin with, one of these keys. It logs damage that shows only now.
func (s *Store) view(of *file, f func(*view), keys ...[]byte) {
	switch err := of.view(f, keys...); {
	case of.broken.Load() != nil, errors.Is(err, errTouched):
		s.rouse() // the goroutine that writes replaces the file, and logs why
	case err != nil:
		s.unreadable(err)
	}
}

func (s *Store) unreadable(err error) {
	s.stats.unreadable.Add(1)
	s.log.Error("the store could not be read", "reason", err)
}

// read decodes a record. It returns nil if there is none, or if the record cannot be read.
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

// open decodes a record. The record belongs to its key, because the two were sealed together.
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

// Check returns why [Open] would not use a file, nil if it would, or would create it. unreadable is the number of records
// that cannot be read. Check changes nothing.
func Check(path string, key *Key, log *slog.Logger) (records, unreadable int, err error) {
	folder := filepath.Dir(path)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return 0, 0, writable(folder)
	case err == nil && info.Mode().IsRegular():
		err = writable(path)
	}
	if err != nil {
		return 0, 0, err
	}
	s, err := OpenReadOnly(path, key, log)
	switch {
	case info.Mode().IsRegular() && info.Size() == 0, errors.Is(err, errEmpty):
		return 0, 0, nil
	case SetsAside(err):
		if fixed := writable(folder); fixed != nil {
			return 0, 0, fmt.Errorf("%s cannot be used: %s; and it cannot be renamed: %w", path, err.Error(), fixed)
		}
		return 0, 0, err
	case err != nil:
		return 0, 0, err
	}
	defer func() { _ = s.Close() }()
	unreadable, err = s.All(func(*Record) bool { records++; return true })
	return records, unreadable, err
}
