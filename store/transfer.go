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

// This file exports and imports stores. An export is a line of JSON that describes the rest, and one line for each
// record. Records are exported as they are stored: encrypted records stay encrypted, and the importing store needs
// the same key.

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

// Export writes all readable records. It returns how many it wrote, and how many could not be read.
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

// Imported has the numbers of an Import.
type Imported struct {
	// Records is the number of records that were read. Secrets is the number of those that were not stored because
	// there is no key.
	Records, Secrets int
}

// Import adds the records of an export to a store, which it creates if there is none. They replace existing records.
// A complete set in the export replaces the existing set with all of its members, because a mixture of the two would
// be served as complete. If Import returns an error, sets that it has partly replaced are not complete.
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
	f, err := openFile(path, o, false)
	if err != nil {
		return done, fmt.Errorf("%s: %w", path, err)
	}
	defer func() { err = errors.Join(err, f.close()) }()
	s := &Store{path: path, opts: o, log: log, noted: newNotes()}
	s.use(f)
	if err := s.fold(); err != nil {
		return done, err
	}
	i := importing{from: from, lines: lines, done: &done, sets: map[cache.Key]*importedSet{}}
	for more := true; more; {
		err := s.transact(func(tx *bolt.Tx) error {
			b := batch{store: s, direct: true, buffers: new(buffers)}
			return b.inside(tx, func() (err error) {
				more, err = i.some(&b)
				return err
			})
		})
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// importing is the state of an Import.
type importing struct {
	from  *file
	lines *json.Decoder
	done  *Imported
	sets  map[cache.Key]*importedSet // sets with imported records
}

// importedSet is a set with imported records.
type importedSet struct {
	key []byte
	// was is the existing set's own record, nil if there was none. It is deleted while members are imported.
	was *Record
	// others are the keys of existing members that have not been imported.
	others map[string]struct{}
}

// some imports the next records, as many as fit into one transaction.
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

// put imports a record.
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

// set returns the importedSet of a record. At its first record, the existing set becomes incomplete.
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

// end restores the own records of sets for which the export had only some members: the sets now contain these.
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
