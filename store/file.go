package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/cespare/xxhash/v2"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// This file opens the database, and determines why a file cannot be used.

// ErrInUse means that another process has the file open.
var ErrInUse = errors.New("another process uses it: two relays cannot share a store")

// unusableError is the reason why a file cannot be used as it is. Errors of the disk have other types.
type unusableError struct{ reason string }

// Error implements error.
func (e *unusableError) Error() string { return e.reason }

// errEmpty means that nothing was written to the file yet.
var errEmpty = unusable("it is empty")

func unusable(format string, args ...any) error {
	return &unusableError{fmt.Sprintf(format, args...)}
}

var (
	recordsBucket = []byte("records")
	aboutBucket   = []byte("about")

	formatKey    = []byte("format")
	format       = []byte("xds-relay store 2")
	encryptedKey = []byte("encrypted")
	proofKey     = []byte("proof") // the format again, sealed
	sumKey       = []byte("sum")   // see sum
)

const fileMode fs.FileMode = 0o600

// The file grows by allocSize, or by 1/allocParts of its bound if that is less.
const (
	allocSize  = 1 << 20
	allocParts = 32
)

func allocSizeOf(maxBytes int64) int {
	if maxBytes == 0 {
		return allocSize
	}
	return int(min(allocSize, maxBytes/allocParts))
}

// lockTimeout is how long a process waits for another one that is about to exit.
const lockTimeout = time.Second

// openFile opens the database, or creates one. It returns an unusableError if the file is not a store or has another
// key.
func openFile(path string, o Options, readOnly bool) (*file, error) {
	torn, err := verifyFile(path, readOnly)
	switch {
	case errors.Is(err, errEmpty): // created by another process, or truncated
		o.Log.Warn("the file of the store is empty: nothing is stored in it", "store", path)
	case err != nil:
		return nil, err
	case torn:
		o.Log.Error("the newest state in the store cannot be read, and the one before it is used", "store", path)
	}
	var db *bolt.DB
	var own *os.File
	err = guard(func() (err error) {
		db, err = bolt.Open(path, fileMode, &bolt.Options{
			Timeout: lockTimeout, ReadOnly: readOnly, FreelistType: bolt.FreelistMapType, MaxSize: int(o.MaxBytes), NoSync: o.noSync,
			OpenFile: func(name string, flag int, perm os.FileMode) (_ *os.File, err error) {
				own, err = os.OpenFile(name, flag, perm)
				return own, err
			},
		})
		return err
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, ErrInUse
	case err != nil:
		return nil, err
	}
	db.AllocSize = allocSizeOf(o.MaxBytes)
	j := &journal{places: newPlaces()}
	f := newFile(db, j, o.Key)
	f.own = own
	err = guard(func() error { return introduce(db, o.Key, j, readOnly) })
	if err == nil {
		err = f.written()
	}
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return f, nil
}

// verifyFile verifies the structure of the file, if there is one, while no other process has it open.
func verifyFile(path string, readOnly bool) (torn bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !readOnly {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	switch {
	case info.IsDir():
		return false, fmt.Errorf("it is a folder, and the store is a file: for example %s", filepath.Join(path, "accepted.db"))
	case !info.Mode().IsRegular():
		return false, errors.New("it is not a regular file")
	}
	for end := time.Now().Add(lockTimeout); ; {
		err := lock(f, !readOnly)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrInUse) || time.Now().After(end) {
			return false, err
		}
		<-time.After(lockTimeout / 20)
	}
	if info, err = f.Stat(); err != nil { // again, now that no process writes to it
		return false, err
	}
	if info.Size() == 0 {
		return false, errEmpty
	}
	if torn, err = verify(f, info.Size()); err != nil {
		return false, asDamaged(err)
	}
	return torn, nil
}

// asDamaged returns the error for a file that cannot be read, or is another one.
func asDamaged(err error) error {
	if errors.Is(err, errNoStore) {
		return unusable("%v", err)
	}
	return unusable("it is damaged: %v", err)
}

// introduce checks that the database was written by this relay and with this key, and reads where the journal's
// records are. It marks a new database.
func introduce(db *bolt.DB, key *Key, j *journal, readOnly bool) error {
	known := false
	err := db.View(func(tx *bolt.Tx) (err error) {
		known, err = recognize(tx, key, j)
		return err
	})
	switch {
	case err != nil || known:
		return err
	case readOnly:
		return errEmpty
	}
	seals := sealedBy(key)
	return db.Update(func(tx *bolt.Tx) error {
		about, err := tx.CreateBucket(aboutBucket)
		if err != nil {
			return err
		}
		proof, err := seals.seal(proofKey, append([]byte(nil), format...))
		if err != nil {
			return err
		}
		encrypted := "no"
		if key != nil {
			encrypted = "yes"
		}
		_, err = tx.CreateBucket(recordsBucket)
		return errors.Join(err, about.Put(formatKey, format), about.Put(proofKey, proof), about.Put(encryptedKey, []byte(encrypted)))
	})
}

// recognize checks that the database was written by this relay and with this key, and that it has all of its records.
// It reads where the journal's records are. known is false for an empty database.
func recognize(tx *bolt.Tx, key *Key, j *journal) (known bool, err error) {
	about := tx.Bucket(aboutBucket)
	if about == nil {
		if key, _ := tx.Cursor().First(); key != nil {
			return false, unusable("it is a database of another program")
		}
		return false, nil
	}
	encrypted := string(about.Get(encryptedKey)) == "yes"
	switch {
	case string(about.Get(formatKey)) != string(format):
		return true, unusable("its format is %q, and this relay knows %q", about.Get(formatKey), format)
	case encrypted && key == nil:
		return true, unusable("it is encrypted, and there is no key file")
	case !encrypted && key != nil:
		return true, unusable("it is not encrypted, and there is a key file")
	}
	seals := sealedBy(key)
	if proof, err := seals.open(proofKey, about.Get(proofKey)); err != nil || string(proof) != string(format) {
		if key != nil {
			return true, unusable("it was encrypted with another key")
		}
		return true, unusable("it is damaged: the record that says what it is cannot be read")
	}
	records := tx.Bucket(recordsBucket)
	if records == nil {
		return true, unusable("it is damaged: it has no records")
	}
	var is sum
	c := records.Cursor()
	for key, _ := c.First(); key != nil; key, _ = c.Next() {
		is.toggle(key)
	}
	if err := j.read(tx, seals); err != nil {
		return true, err
	}
	for part := j.first; part < j.next; part++ {
		is.toggle(partKey(part))
	}
	if is != sumOf(about) {
		return true, unusable("it is damaged: some of its records are missing")
	}
	return true, nil
}

// sum is a checksum of the keys of all records and parts of the journal. It reveals lost ones.
type sum uint64

// toggle adds a key to the sum, or removes one that is in it.
func (s *sum) toggle(key []byte) { *s ^= sum(xxhash.Sum64(key)) }

// sumOf returns the sum that is stored.
func sumOf(about *bolt.Bucket) sum {
	if b := about.Get(sumKey); len(b) == checksumLen {
		return sum(binary.BigEndian.Uint64(b))
	}
	return 0
}

// put stores the sum.
func (s sum) put(about *bolt.Bucket) error {
	return about.Put(sumKey, binary.BigEndian.AppendUint64(nil, uint64(s)))
}

// setAside renames a file that cannot be used, and returns its new name.
func setAside(path string, now time.Time) (string, error) {
	base := path + ".aside-" + now.UTC().Format("20060102T150405")
	for i := range 100 {
		aside := base
		if i > 0 {
			aside = fmt.Sprintf("%s-%d", base, i)
		}
		if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
			return aside, os.Rename(path, aside)
		}
	}
	return "", fmt.Errorf("%s and 99 names like it are taken", base)
}

// guard calls f, and returns an error if f panics: bbolt panics if the disk lost written data, or if the file is
// truncated while in use.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = unusable("it is damaged: %v", p)
		}
	}()
	return f()
}

func sealedBy(key *Key) sealed {
	if key != nil {
		return key
	}
	return checksums{}
}
