package store

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	bolt "go.etcd.io/bbolt"
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
	if err := lines.Encode(exportHeader{exportFormat, s.opts.Key != nil}); err != nil {
		return 0, 0, err
	}
	err = guard(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			return tx.Bucket(recordsBucket).ForEach(func(key, value []byte) error {
				if s.read(key, value) == nil {
					unreadable++
					return nil
				}
				written++
				return lines.Encode(exportedRecord{key, value})
			})
		})
	})
	return written, unreadable, errors.Join(err, w.Flush())
}

// Imported is what Import has done.
type Imported struct {
	// Records were read, and Secrets of them not stored because there is no key.
	Records, Secrets int
}

// Import adds what Export has written to a store, which is made if it is not there. Records that
// it has already are replaced.
func Import(path string, key *Key, in io.Reader, log *slog.Logger) (done Imported, err error) {
	lines := json.NewDecoder(bufio.NewReader(in))
	var header exportHeader
	if err := lines.Decode(&header); err != nil || header.Format != exportFormat {
		return done, fmt.Errorf("it is not an export of a store (want %q in its first line)", exportFormat)
	}
	if header.Encrypted && key == nil {
		return done, errors.New("the export is encrypted: --key-file is missing")
	}
	from := &Store{seals: checksums{}, keys: keys{hash: plainHash}}
	if header.Encrypted {
		from.seals, from.keys.hash = key, key.hash
	}
	o := Options{Key: key, Log: log}
	db, err := openFile(path, o, false)
	if err != nil {
		return done, fmt.Errorf("%s: %w", path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	s := &Store{path: path, opts: o, log: log, noted: newNotes()}
	s.use(db)
	for more := true; more; {
		err := guard(func() error {
			return db.Update(func(tx *bolt.Tx) error {
				b := batch{store: s}
				return b.inside(tx, func() (err error) {
					more, err = b.importSome(from, lines, &done)
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

// importSome puts the records that follow, as many as fit into one transaction.
func (b *batch) importSome(from *Store, lines *json.Decoder, done *Imported) (more bool, err error) {
	for b.bytes < batchBytes {
		var line exportedRecord
		switch err := lines.Decode(&line); {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("after %d records: %w", done.Records, err)
		}
		r, err := from.open(line.Key, line.Record)
		if err != nil {
			return false, fmt.Errorf("record %d cannot be read, or was encrypted with another key: %w", done.Records+1, err)
		}
		secrets := b.secrets
		key, err := b.store.keys.of(r)
		if err != nil {
			return false, err
		}
		if err := b.put(key, r); err != nil {
			return false, err
		}
		done.Records, done.Secrets = done.Records+1, done.Secrets+b.secrets-secrets
	}
	return true, nil
}
