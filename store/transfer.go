package store

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	bolt "go.etcd.io/bbolt"

	"github.com/xds-relay/xds-relay/cache"
)

// Export and import: a line of JSON about what follows, and a line for each record. Records are as
// they are stored, so what is encrypted stays so, and needs the same key where it is imported.

// exportFormat is the first line's format.
const exportFormat = "xds-relay store export 1"

type exportHeader struct {
	Format    string `json:"format"`
	Encrypted bool   `json:"encrypted"`
}

type exportedRecord struct {
	Key    []byte `json:"key"`
	Record []byte `json:"record"`
}

// Export writes all records that can be read. It returns how many it wrote, and how many could not
// be read.
func (s *Store) Export(out io.Writer) (written, unreadable int, err error) {
	w := bufio.NewWriter(out)
	lines := json.NewEncoder(w)
	if err := lines.Encode(exportHeader{exportFormat, s.Encrypted()}); err != nil {
		return 0, 0, err
	}
	var failed error
	lost := lostMembers{}
	of := s.enter()
	defer of.leave()
	err = of.viewAll(func(key, value []byte) bool {
		if s.read(of, key, value) == nil {
			unreadable++
			lost.add(key)
			return true
		}
		if lost.has(key) {
			return true
		}
		written++
		failed = lines.Encode(exportedRecord{key, value})
		return failed == nil
	})
	return written, unreadable, errors.Join(err, failed, w.Flush())
}

// Imported is what Import has done.
type Imported struct {
	// Records were read, and Secrets of them not stored because there is no key.
	Records, Secrets int
}

// Import adds what Export has written to a store, which is made if it is not there. Records that
// it has already are replaced. A set that the export has as a whole takes the place of the one that is there, with all
// of its members: clients would be served a mixture of the two as all there is. If Import ends with an error, sets
// of which it has replaced something are not whole.
func Import(path string, key *Key, in io.Reader, log *slog.Logger) (done Imported, err error) {
	lines := json.NewDecoder(bufio.NewReader(in))
	var header exportHeader
	if err := lines.Decode(&header); err != nil || header.Format != exportFormat {
		return done, fmt.Errorf("it is not an export of a store (want %q in its first line)", exportFormat)
	}
	if header.Encrypted && key == nil {
		return done, errors.New("the export is encrypted: --key-file is missing")
	}
	from := newFile(nil, nil, nil)
	if header.Encrypted {
		from = newFile(nil, nil, key)
	}
	o := Options{Key: key, Log: log}
	db, j, err := openFile(path, o, false)
	if err != nil {
		return done, fmt.Errorf("%s: %w", path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	s := &Store{path: path, opts: o, log: log, noted: newNotes()}
	s.use(db, j)
	if err := s.fold(); err != nil {
		return done, err
	}
	i := importing{from: from, lines: lines, done: &done, sets: map[cache.Key]*importedSet{}}
	for more := true; more; {
		err := guard(func() error {
			return db.Update(func(tx *bolt.Tx) error {
				b := batch{store: s, direct: true, buffers: new(buffers)}
				return b.inside(tx, func() (err error) {
					more, err = i.some(&b)
					return err
				})
			})
		})
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// importing is an Import.
type importing struct {
	from  *file
	lines *json.Decoder
	done  *Imported
	sets  map[cache.Key]*importedSet // of which there were records
}

// importedSet is a set of which records come.
type importedSet struct {
	key []byte
	// was is the record of the set that was there, nil if there was none. It is not there while the members come.
	was *Record
	// others are the keys of the members that were there and have not come.
	others map[string]struct{}
}

// some puts the records that follow, as many as fit into one transaction.
func (i *importing) some(b *batch) (more bool, err error) {
	for b.bytes < batchBytes {
		var line exportedRecord
		switch err := i.lines.Decode(&line); {
		case errors.Is(err, io.EOF):
			return false, i.end(b)
		case err != nil:
			return false, fmt.Errorf("after %d records: %w", i.done.Records, err)
		}
		r, err := i.from.open(line.Key, line.Record)
		if err != nil {
			return false, fmt.Errorf("record %d cannot be read, or was encrypted with another key: %w", i.done.Records+1, err)
		}
		secrets := b.secrets
		if err := i.put(b, r); err != nil {
			return false, err
		}
		i.done.Records, i.done.Secrets = i.done.Records+1, i.done.Secrets+b.secrets-secrets
	}
	return true, nil
}

// put puts a record.
func (i *importing) put(b *batch, r *Record) error {
	if !r.Topic.IsSet() {
		return b.copy(r)
	}
	set, err := i.set(b, r.Topic)
	if err != nil {
		return err
	}
	if !r.Set {
		key, err := b.store.keys.of(r)
		if err != nil {
			return err
		}
		delete(set.others, string(key))
		return b.copy(r)
	}
	for key := range set.others {
		if err := b.delete([]byte(key)); err != nil {
			return err
		}
	}
	set.was, set.others = nil, nil
	return b.copy(r)
}

// set returns a set of which a record comes. With the first one, the set that is there is not whole any more.
func (i *importing) set(b *batch, k cache.Key) (*importedSet, error) {
	if set := i.sets[k]; set != nil {
		return set, nil
	}
	key, err := b.store.keys.of(&Record{Topic: k, Set: true})
	if err != nil {
		return nil, err
	}
	set := &importedSet{key: key, others: map[string]struct{}{}}
	if b.there(key) {
		set.was = b.store.read(b.store.file, key, b.stored(key))
	}
	for _, member := range b.keysOf(append([]byte{memberKind}, key[1:]...)) {
		if b.there(member) {
			set.others[string(member)] = struct{}{}
		}
	}
	i.sets[k] = set
	return set, b.delete(key)
}

// end puts back the records of sets of which only some members came: those are in them now.
func (i *importing) end(b *batch) error {
	for _, set := range i.sets {
		if set.was == nil {
			continue
		}
		if err := b.put(set.key, set.was); err != nil {
			return err
		}
	}
	return nil
}
