package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/xds-relay/xds-relay/cache"
)

// Others may truncate, overwrite, delete or replace the file while the store has it open. bbolt maps the file into
// memory and trusts it: reading a page beyond its end is a fault, and after a fault bbolt may hold its locks for ever.
// So the store compares the file with what it has written before it enters bbolt, and never enters a file again that
// was damaged or had a fault. The goroutine that writes sets such a file aside, and begins another one with what the
// cache has.

const (
	// inspectEvery is how often the store checks its file, besides before each commit.
	inspectEvery = 5 * time.Second
	// renewEvery is the shortest time between two files that the store begins, so that whoever damages the file again
	// and again does not fill the disk.
	renewEvery = time.Minute
)

// errDisplaced means that the open file is intact, but no longer the one at the store's path.
var errDisplaced = errors.New("its file was deleted or replaced while the relay uses it")

// errTouched means that another process may have written to the file.
var errTouched = errors.New("its file has changed")

// breakage is why a file must not be entered again.
type breakage struct {
	// broken is nil for a file that can be used.
	broken atomic.Pointer[unusableError]
	// locked: bbolt may hold its locks, so the database cannot be closed.
	locked atomic.Bool
	// seen is what the store has last seen of the file.
	seen atomic.Pointer[stamp]
	own  *os.File // the descriptor of the database
}

// stamp is a state of a file that only the store has written.
type stamp struct {
	size int64
	time time.Time
	meta meta
	// writing: a transaction is changing the file, which may grow.
	writing bool
}

// fail notes that the file must not be entered again if err says so.
func (b *breakage) fail(err error) {
	if damaged, ok := errors.AsType[*unusableError](err); ok {
		b.broken.CompareAndSwap(nil, damaged)
	}
}

// check returns why the file must not be entered now. It costs one system call.
func (b *breakage) check() error {
	if why := b.broken.Load(); why != nil {
		return why
	}
	seen := b.seen.Load()
	info, err := b.own.Stat()
	switch {
	case err != nil:
		return err
	case info.Size() < seen.size:
		err = unusable("it was truncated from %d to %d bytes while the relay uses it", seen.size, info.Size())
		b.fail(err)
		return err
	case !seen.writing && seen == b.seen.Load() && !info.ModTime().Equal(seen.time):
		return errTouched
	}
	return nil
}

// look returns what the file is like now.
func (b *breakage) look() (*stamp, error) {
	info, err := b.own.Stat()
	if err != nil {
		return nil, err
	}
	m, _, err := newestMeta(b.own, info.Size())
	if err != nil {
		return nil, asDamaged(err)
	}
	return &stamp{size: info.Size(), time: info.ModTime(), meta: m}, nil
}

// written notes what the file is like after the store has written to it.
func (b *breakage) written() error {
	now, err := b.look()
	if err == nil {
		b.seen.Store(now)
	}
	b.fail(err)
	return err
}

// touched returns what is wrong with a file to which another process may have written: all for which the next start would
// set it aside.
func (f *file) touched() error {
	seen := f.seen.Load()
	now, err := f.look()
	if err == nil && now.meta != seen.meta {
		err = unusable("another process wrote to it while the relay uses it")
	}
	if err == nil {
		if damage := verifyState(f.own, now.size, now.meta); damage != nil {
			err = unusable("it was damaged while the relay uses it: %v", damage)
		}
	}
	if err == nil {
		f.seen.Store(now)
		err = f.read(func(tx *bolt.Tx, _ map[string]place) error {
			known, err := recognize(tx, f.key, &journal{places: newPlaces()})
			if err == nil && !known {
				err = unusable("it is damaged: it is empty")
			}
			return err
		}, sumKey)
		if err != nil {
			f.seen.Store(seen) // the next use verifies it again
		}
	}
	f.fail(err)
	return err
}

// update runs a transaction that writes.
func (f *file) update(with func(*bolt.DB, func(*bolt.Tx) error) error, do func(*bolt.Tx) error) error {
	if err := f.check(); err != nil {
		return err
	}
	before := *f.seen.Load()
	before.writing = true
	f.seen.Store(&before)
	entered := true
	err := guard(func() error {
		err := with(f.db, do)
		entered = false
		return err
	})
	if entered { // it has panicked
		f.locked.Store(true)
	}
	f.fail(err)
	return cmp.Or(err, f.written())
}

// transact is update for the store's file.
func (s *Store) transact(do func(*bolt.Tx) error) error { return s.file.update(s.opts.update, do) }

// close closes the database, unless its locks may be held: then it stays open.
func (f *file) close() error {
	if f.locked.Load() {
		return nil
	}
	return f.db.Close()
}

// inspect returns what is wrong with the store's file. Only the goroutine that writes calls it, because it reads the
// whole file if another process may have written to it.
func (s *Store) inspect() error {
	f := s.file
	err := f.check()
	if errors.Is(err, errTouched) {
		err = f.touched()
	}
	if err != nil {
		return err
	}
	own, err := f.own.Stat()
	if err != nil {
		return err
	}
	if at, err := os.Stat(s.path); err != nil || !os.SameFile(own, at) {
		return errDisplaced
	}
	return nil
}

// renew replaces the file if it cannot be used any more, or is no longer at the store's path.
func (s *Store) renew() error {
	why := s.inspect()
	if why == nil {
		return nil
	}
	s.stats.failures.Add(1)
	if !SetsAside(why) && !errors.Is(why, errDisplaced) || time.Since(s.renewed) < renewEvery {
		return why
	}
	aside, err := s.setAside()
	if err != nil {
		return fmt.Errorf("%w; and what is there cannot be renamed: %w", why, err)
	}
	if aside != "" {
		s.log.Error("what was in the store's place was set aside", "reason", why, "renamed_to", aside)
	}
	if errors.Is(why, errDisplaced) {
		err = s.rewrite(rekeying{key: s.opts.Key, maxBytes: s.opts.MaxBytes})
	} else {
		err = s.beginAgain()
	}
	if err != nil {
		return fmt.Errorf("%w; and another file cannot be written: %w", why, err)
	}
	s.renewed = time.Now()
	s.log.Error("the store could not be used any more: the relay writes another file, with what it has", "reason", why, "event", "store")
	return nil
}

// setAside renames what is at the store's path, if there is something. It returns the new name.
func (s *Store) setAside() (string, error) {
	if _, err := os.Lstat(s.path); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	aside, err := setAside(s.path, time.Now())
	if err == nil {
		s.stats.setAside.Add(1)
	}
	return aside, err
}

// beginAgain begins an empty file, and notes what the cache has.
func (s *Store) beginAgain() error {
	to, err := openFile(s.path, s.opts, false)
	if err != nil {
		return err
	}
	s.replace(to)
	all := map[cache.Key]struct{}{}
	if s.opts.Topics != nil {
		s.opts.Topics(func(k cache.Key) { all[k] = struct{}{} })
	}
	s.noteAgain(all)
	return nil
}

// replace makes another file the current one. The one before is closed after its last reader.
func (s *Store) replace(to *file) {
	before := s.file
	s.mu.Lock()
	s.file = to
	s.mu.Unlock()
	clear(s.latest[:])
	s.closing.Go(func() {
		before.readers.Wait()
		if err := before.close(); err != nil {
			s.log.Error("the store's former file could not be closed", "reason", err)
		}
	})
}

// Failure is why nothing can be stored.
type Failure struct {
	Reason string
	Since  time.Time
}

// fails notes the outcome of writing, nil for success.
func (s *Store) fails(err error) {
	if err == nil {
		if s.stats.failure.Swap(nil) != nil {
			s.log.Info("accepted resources are stored again", "event", "store")
		}
		return
	}
	reason := err.Error()
	if errors.Is(err, syscall.ENOSPC) {
		reason = "the disk is full: " + reason
	}
	if s.stats.failure.CompareAndSwap(nil, &Failure{reason, time.Now()}) {
		s.log.Error("accepted resources cannot be stored; clients are still served", "reason", reason, "event", "store")
	}
}
