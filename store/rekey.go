package store

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/xds-relay/xds-relay/cache"
)

// Another key of an open store. All records are written to another file, with that key. Then it takes the place of the
// first one by its name, at once: whenever the process or the system ends, there is one whole file. Until then the
// first one is read, and afterwards by those who read it already. What is noted meanwhile waits, and is written to the
// other file.

// rekeyed is added to the name of the store for the file of another key.
const rekeyed = ".rekeyed"

// maxSecretTopics bounds the topics that are stored once there is a key.
const maxSecretTopics = 1 << 16

// rekeying is a wish for another key.
type rekeying struct {
	key      *Key
	maxBytes int64
	done     chan error
}

// errClosed is the error of another key for a store that is closed.
var errClosed = errors.New("the store is closed")

// Rekey has the store use another key, nil for none. Without a key it forgets what has secrets in it. With the first one
// it stores that, too. The file may then have maxBytes, 0 for no bound. Rekey waits until everything is written. If it
// returns an error, the store has its old key, and what it had.
func (s *Store) Rekey(key *Key, maxBytes int64) error {
	r := rekeying{key, maxBytes, make(chan error, 1)}
	select {
	case s.rekeys <- r:
		return <-r.done
	case <-s.done:
		return errClosed
	}
}

// rekey is Rekey, by the goroutine that writes.
func (s *Store) rekey(r rekeying) error {
	path := s.path + rekeyed
	if err := s.fold(); err != nil {
		return err
	}
	to, err := s.copyTo(path, r)
	if err == nil {
		if err = os.Rename(path, s.path); err != nil {
			err = errors.Join(err, to.db.Close())
		}
	}
	if err != nil {
		_ = os.Remove(path) // it may not be there
		return err
	}
	syncFolder(s.path)
	old := s.file
	s.mu.Lock()
	s.file = to
	s.mu.Unlock()
	s.opts.Key = r.key
	clear(s.latest[:])
	if old.key == nil {
		secret := s.secret
		s.secret = map[cache.Key]struct{}{}
		s.noteAgain(secret)
	}
	s.closing.Go(func() {
		old.readers.Wait()
		if err := old.db.Close(); err != nil {
			s.log.Error("the file with the old key could not be closed", "reason", err)
		}
	})
	return nil
}

// copyTo writes all records, of which the journal has none, to another file, which has the name path, with another key.
// What cannot be read is left out.
func (s *Store) copyTo(path string, r rekeying) (_ *file, err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	o := s.opts
	o.Key, o.MaxBytes = r.key, r.maxBytes
	db, j, err := openFile(path, o, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	o.MaxBytes = 0 // that something has no room is an error of the file
	to := &Store{path: path, opts: o, log: s.log, noted: newNotes(), secret: map[cache.Key]struct{}{}}
	to.use(db, j)
	lost := lostMembers{}
	err = guard(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			c := tx.Bucket(recordsBucket).Cursor()
			for key, value := c.First(); key != nil; {
				err := to.opts.update(db, func(tx *bolt.Tx) error {
					b := batch{store: to, direct: true, buffers: new(buffers)}
					return b.inside(tx, func() (err error) {
						for ; key != nil && b.bytes < batchBytes && err == nil; key, value = c.Next() {
							switch r := s.read(s.file, key, value); {
							case r == nil:
								lost.add(key)
							case !lost.has(key):
								err = b.copy(r)
							}
						}
						return err
					})
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		err = cmp.Or(errOfRoom(err, r.maxBytes), err)
		return nil, errors.Join(err, db.Close())
	}
	if r.key == nil {
		s.secret = to.secret
	}
	return to.file, nil
}

// copy puts a record of another file.
func (b *batch) copy(r *Record) error {
	key, err := b.store.keys.of(r)
	if err != nil {
		return err
	}
	if r.isMember() {
		return b.keep(key, r)
	}
	return b.put(key, r)
}

// lostMembers are the sets of which a member cannot be read, by the hashes in their keys. Without that member they are
// not whole: what copies records leaves out the set's own one. It comes after those of the members.
type lostMembers map[string]struct{}

// add notes that the record of a key cannot be read.
func (l lostMembers) add(key []byte) {
	if len(key) >= prefixLen && key[0] == memberKind {
		l[string(key[1:prefixLen])] = struct{}{}
	}
}

// has reports whether the key is that of such a set.
func (l lostMembers) has(key []byte) bool {
	if len(key) != prefixLen || key[0] != setKind {
		return false
	}
	_, is := l[string(key[1:])]
	return is
}

// errOfRoom returns what a file without room means for another key, nil for other errors.
func errOfRoom(err error, maxBytes int64) error {
	if !errors.Is(err, berrors.ErrMaxSizeReached) {
		return nil
	}
	return fmt.Errorf("with this key the records have no room in a file of %d bytes (want a larger store.max_bytes)", maxBytes)
}

// syncFolder has the disk take the new name of a file. If it does not, the old file may be there after a crash of the
// system.
func syncFolder(path string) {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return
	}
	_ = d.Sync()
	_ = d.Close()
}
