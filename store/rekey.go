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

// This file changes the key of an open store. The store writes all records to another file, with the new key, and
// then renames that file to the name of the first one, atomically. Whenever the process or the system stops, there is
// one complete file. Until the rename, readers use the first file, and readers that have begun continue with it
// afterwards. Notes that arrive during the change wait, and are written to the new file.

// rekeyed is the suffix of the file with the new key until it is renamed.
const rekeyed = ".rekeyed"

// maxSecretTopics bounds the topics with secrets that are remembered, to store them once there is a key.
const maxSecretTopics = 1 << 16

// rekeying is a call of Rekey.
type rekeying struct {
	key      *Key
	maxBytes int64
	done     chan error
}

// errClosed is Rekey's error for a closed store.
var errClosed = errors.New("the store is closed")

// Rekey changes the store's key, nil for none. Without a key, the store deletes resources with secrets. With its
// first key, it also stores those. The file may then have maxBytes, 0 for no bound. Rekey waits until everything is
// written. If it returns an error, the store keeps its old key and its records.
func (s *Store) Rekey(key *Key, maxBytes int64) error {
	r := rekeying{key, maxBytes, make(chan error, 1)}
	select {
	case s.rekeys <- r:
		return <-r.done
	case <-s.done:
		return errClosed
	}
}

// rekey implements Rekey in the goroutine that writes.
func (s *Store) rekey(r rekeying) error {
	if err := s.renew(); err != nil {
		return err
	}
	return s.rewrite(r)
}

// rewrite writes everything to another file, which then takes the place of the first one.
func (s *Store) rewrite(r rekeying) error {
	path := s.path + rekeyed
	if err := s.fold(); err != nil {
		return err
	}
	to, err := s.copyTo(path, r)
	if err == nil {
		if err = os.Rename(path, s.path); err != nil {
			err = errors.Join(err, to.close())
		}
	}
	if err != nil {
		_ = os.Remove(path) // the file may not exist
		return err
	}
	syncFolder(s.path)
	old := s.file
	s.replace(to)
	s.opts.Key = r.key
	if old.key == nil {
		secret := s.secret
		s.secret = map[cache.Key]struct{}{}
		s.noteAgain(secret)
	}
	return nil
}

// copyTo writes all records to a new file at path, with another key. The journal is empty. Records that cannot be
// read are left out.
func (s *Store) copyTo(path string, r rekeying) (_ *file, err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	o := s.opts
	o.Key, o.MaxBytes = r.key, r.maxBytes
	copied, err := openFile(path, o, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	o.MaxBytes = 0 // so that a record that does not fit is an error of the file
	to := &Store{path: path, opts: o, log: s.log, noted: newNotes(), secret: map[cache.Key]struct{}{}}
	to.use(copied)
	lost := lostMembers{}
	err = s.file.read(func(tx *bolt.Tx, _ map[string]place) error {
		c := tx.Bucket(recordsBucket).Cursor()
		for key, value := c.First(); key != nil; {
			err := to.transact(func(tx *bolt.Tx) error {
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
	if err != nil {
		err = cmp.Or(errOfRoom(err, r.maxBytes), err)
		return nil, errors.Join(err, copied.close())
	}
	if r.key == nil {
		s.secret = to.secret
	}
	return to.file, nil
}

// copy writes a record from another file.
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

// lostMembers are the sets that have an unreadable member, by the hashes in their keys. Such a set is not complete,
// so a copy leaves out the set's own record, which comes after those of its members.
type lostMembers map[string]struct{}

// add records that the record of a key cannot be read.
func (l lostMembers) add(key []byte) {
	if len(key) >= prefixLen && key[0] == memberKind {
		l[string(key[1:prefixLen])] = struct{}{}
	}
}

// has reports whether the key is the own record of such a set.
func (l lostMembers) has(key []byte) bool {
	if len(key) != prefixLen || key[0] != setKind {
		return false
	}
	_, is := l[string(key[1:])]
	return is
}

// errOfRoom returns Rekey's error for a file without room, nil for other errors.
func errOfRoom(err error, maxBytes int64) error {
	if !errors.Is(err, berrors.ErrMaxSizeReached) {
		return nil
	}
	return fmt.Errorf("with this key the records have no room in a file of %d bytes (want a larger store.max_bytes)", maxBytes)
}

// syncFolder writes the renamed file's directory entry to disk. If that fails, a crash of the system may bring back
// the old file.
func syncFolder(path string) {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return
	}
	_ = d.Sync()
	_ = d.Close()
}
