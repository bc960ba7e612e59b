package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// This file implements the journal. A transaction writes its changes as one part of the journal: two values that are
// adjacent on disk. Written directly to the records' places, each change would touch a page of its own, since the
// keys are hashes. When the journal is large enough, the store moves its newest records to their places, in the order
// of their keys (fold). By then, resources that changed repeatedly are in the journal only once.
//
// Journal and records are in one database, so a bbolt transaction covers both and no recovery is needed. The
// positions of records in the journal are kept in memory (places), and are read when the file is opened.

const (
	// journalBytes and journalRecords bound the journal, and so the memory that its places take.
	journalBytes   = 16 << 20
	journalRecords = 1 << 16
	// foldBytes is how much of the journal one transaction moves. The next transaction can reuse the pages that it
	// freed.
	foldBytes = 2 << 20
	// journalRoom is the smallest MaxBytes with which the store uses a journal: while it is folded, its records are
	// on disk twice.
	journalRoom = 32 * journalBytes
)

var (
	journalBucket = []byte("journal")
	indexKey      = []byte("index") // in a part: the keys of its records, and the records' lengths
	valuesKey     = []byte("values")
)

// place is a record's position in the journal. With length 0 the record is deleted.
type place struct {
	part         uint64
	from, length int
}

// places maps the keys of records to places.
type places struct {
	at map[string]place
	// members has the keys of members by their common prefix.
	members map[string][]string
}

// prefixLen is the length of the prefix that the keys of a set's members share.
const prefixLen = 1 + hashLen

func newPlaces() places { return places{at: map[string]place{}, members: map[string][]string{}} }

func (p *places) put(key string, is place) {
	if _, there := p.at[key]; !there && key[0] == memberKind {
		p.members[key[:prefixLen]] = append(p.members[key[:prefixLen]], key)
	}
	p.at[key] = is
}

func (p *places) clear() {
	clear(p.at)
	clear(p.members)
}

// journal is the in-memory state of a store's journal. Only the goroutine that writes changes it.
type journal struct {
	mu sync.Mutex // held for changes, and by other goroutines for reads; only the locks of the database come after it
	places
	first, next uint64 // numbers of parts
	bytes       int    // of the records in the journal
}

func (j *journal) empty() bool { return j.first == j.next }

// full reports whether the journal has more than most bytes, or too many records.
func (j *journal) full(most int) bool { return j.bytes > most || len(j.at) > journalRecords }

// add adds the places of a part that has been written.
func (j *journal) add(staged *places, size int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for key, is := range staged.at {
		j.put(key, is)
	}
	j.next++
	j.bytes += size
}

// folded records that the journal has been folded and is empty.
func (j *journal) folded() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.clear()
	j.first, j.bytes = j.next, 0
}

// of returns the places of the keys that are, or begin with, one of these keys; without keys, all. The caller holds
// mu.
func (j *journal) of(keys ...[]byte) map[string]place {
	if len(keys) == 0 {
		return maps.Clone(j.at)
	}
	var some map[string]place
	add := func(key string) {
		if is, there := j.at[key]; there {
			if some == nil {
				some = map[string]place{}
			}
			some[key] = is
		}
	}
	for _, key := range keys {
		add(string(key))
		for _, member := range j.members[string(key)] {
			add(member)
		}
	}
	return some
}

// partKey returns the key of a part.
func partKey(part uint64) []byte { return binary.BigEndian.AppendUint64(nil, part) }

// bound returns the associated data for sealing the index of a part.
func bound(part []byte) []byte { return append(append([]byte(nil), journalBucket...), part...) }

// read reads the positions of the journal's records. Its errors are unusableErrors: without the index of a part, the
// store cannot know which records are outdated.
func (j *journal) read(tx *bolt.Tx, seals sealed) error {
	bucket := tx.Bucket(journalBucket)
	if bucket == nil {
		return nil
	}
	damaged := unusable("it is damaged: a part of its journal cannot be read")
	return bucket.ForEach(func(key, _ []byte) error {
		part := bucket.Bucket(key)
		if part == nil || len(key) != 8 {
			return damaged
		}
		n := binary.BigEndian.Uint64(key)
		if j.empty() {
			j.first = n
		}
		j.next = n + 1
		index, err := seals.open(bound(key), part.Get(indexKey))
		if err != nil {
			return damaged
		}
		values, from := len(part.Get(valuesKey)), 0
		for len(index) > 0 {
			key, rest, ok := cutBytes(index)
			length, size := binary.Uvarint(rest)
			if !ok || len(key) < prefixLen || size <= 0 || length > uint64(values-from) {
				return damaged
			}
			index = rest[size:]
			j.put(string(key), place{n, from, int(length)})
			from += int(length)
		}
		j.bytes += from
		return nil
	})
}

// cutBytes returns the length-prefixed value at the start of b, and the rest.
func cutBytes(b []byte) (value, rest []byte, ok bool) {
	length, size := binary.Uvarint(b)
	if size <= 0 || length > uint64(len(b)-size) {
		return nil, nil, false
	}
	b = b[size:]
	return b[:length], b[length:], true
}

// view shows a transaction's records with the journal's changes applied.
type view struct {
	records, journal *bolt.Bucket
	places           map[string]place
	parts            map[uint64][]byte // values of the parts that were read
}

func viewOf(tx *bolt.Tx, of map[string]place) *view {
	return &view{records: tx.Bucket(recordsBucket), journal: tx.Bucket(journalBucket), places: of}
}

// get returns the record of a key, nil if there is none.
func (v *view) get(key []byte) []byte {
	if is, there := v.places[string(key)]; there {
		return v.placed(key, is)
	}
	return v.records.Get(key)
}

// placed returns a record that was in the journal before the transaction began. The record may have been folded
// since, and be in its place.
func (v *view) placed(key []byte, is place) []byte {
	if is.length == 0 {
		return nil
	}
	values, known := v.parts[is.part]
	if !known {
		if v.journal != nil {
			if part := v.journal.Bucket(partKey(is.part)); part != nil {
				values = part.Get(valuesKey)
			}
		}
		if v.parts == nil {
			v.parts = map[uint64][]byte{}
		}
		v.parts[is.part] = values
	}
	if values == nil {
		return v.records.Get(key)
	}
	return values[is.from : is.from+is.length]
}

// all iterates over the records whose keys begin with a prefix, in the order of the keys.
func (v *view) all(prefix []byte, yield func(key, value []byte) bool) {
	var journaled []string
	for key := range v.places {
		if bytes.HasPrefix([]byte(key), prefix) {
			journaled = append(journaled, key)
		}
	}
	slices.Sort(journaled)
	next := func() bool {
		key := []byte(journaled[0])
		journaled = journaled[1:]
		value := v.get(key)
		return value == nil || yield(key, value)
	}
	c := v.records.Cursor()
	for key, value := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, value = c.Next() {
		for len(journaled) > 0 && journaled[0] < string(key) {
			if !next() {
				return
			}
		}
		if len(journaled) > 0 && journaled[0] == string(key) {
			if !next() {
				return
			}
			continue
		}
		if !yield(key, value) {
			return
		}
	}
	for len(journaled) > 0 {
		if !next() {
			return
		}
	}
}

// buffers are the buffers of one transaction, which the next one reuses.
type buffers struct{ record, index, values []byte }

func (b *buffers) clear() {
	if cap(b.values) > buffersMost {
		*b = buffers{}
	}
	b.index, b.values = b.index[:0], b.values[:0]
}

// buffersMost bounds the size of the buffers between transactions.
const buffersMost = 1 << 20

// stage stages a change of a record, or its deletion if there is no value. The transaction writes its staged changes
// at its end.
func (b *batch) stage(key, value []byte) {
	b.index = binary.AppendUvarint(b.index, uint64(len(key)))
	b.index = append(b.index, key...)
	b.index = binary.AppendUvarint(b.index, uint64(len(value)))
	b.staged.put(string(key), place{b.store.journal.next, len(b.values), len(value)})
	b.values = append(b.values, value...)
}

// lengthOf returns the length of a key's record, -1 if there is none.
func (b *batch) lengthOf(key []byte) int {
	if is, there := b.placeOf(key); there {
		if is.length == 0 {
			return -1
		}
		return is.length
	}
	if value := b.view.records.Get(key); value != nil {
		return len(value)
	}
	return -1
}

// there reports whether a key has a record.
func (b *batch) there(key []byte) bool { return b.lengthOf(key) >= 0 }

// stored returns a key's record.
func (b *batch) stored(key []byte) []byte {
	is, there := b.placeOf(key)
	switch {
	case !there:
		return b.view.records.Get(key)
	case is.part == b.store.journal.next && is.length > 0:
		return b.values[is.from : is.from+is.length]
	}
	return b.view.placed(key, is)
}

func (b *batch) placeOf(key []byte) (is place, there bool) {
	if is, there = b.staged.at[string(key)]; !there {
		is, there = b.store.journal.at[string(key)]
	}
	return is, there
}

// keysOf returns the keys of a set's members, including deleted ones.
func (b *batch) keysOf(prefix []byte) [][]byte {
	var keys [][]byte
	c := b.view.records.Cursor()
	for key, _ := c.Seek(prefix); bytes.HasPrefix(key, prefix); key, _ = c.Next() {
		keys = append(keys, bytes.Clone(key))
	}
	for _, places := range []*places{&b.store.journal.places, &b.staged} {
		for _, key := range places.members[string(prefix)] {
			keys = append(keys, []byte(key))
		}
	}
	return keys
}

// finish writes the staged changes: to the journal, or to the records' places.
func (b *batch) finish(tx *bolt.Tx) error {
	if len(b.staged.at) == 0 {
		return nil
	}
	if b.direct {
		keys := slices.Sorted(maps.Keys(b.staged.at))
		for _, key := range keys {
			is := b.staged.at[key]
			if err := b.settle([]byte(key), b.values[is.from:is.from+is.length]); err != nil {
				return err
			}
		}
		return nil
	}
	journal, err := tx.CreateBucketIfNotExists(journalBucket)
	if err != nil {
		return err
	}
	key := partKey(b.store.journal.next)
	part := journal.Bucket(key) // left by a transaction that took effect although it reported an error
	if part == nil {
		b.sum.toggle(key)
		if part, err = journal.CreateBucket(key); err != nil {
			return err
		}
	}
	index, err := b.store.seals.seal(bound(key), b.index)
	if err != nil {
		return err
	}
	return errors.Join(part.Put(indexKey, index), part.Put(valuesKey, b.values))
}

// settle writes a record to its place, or deletes it if there is no value.
func (b *batch) settle(key, value []byte) error {
	there := b.view.records.Get(key) != nil
	if there != (len(value) > 0) {
		b.sum.toggle(key)
	}
	switch {
	case len(value) > 0:
		return b.view.records.Put(key, value)
	case there:
		return b.view.records.Delete(key)
	}
	return nil
}

// fold moves the journal's records to their places, and empties the journal. If fold ends early, readers see no
// difference.
func (s *Store) fold() error {
	j := s.journal
	if j.empty() {
		return nil
	}
	keys := slices.Sorted(maps.Keys(j.at))
	for done := false; !done; {
		n := 0
		err := s.transact(func(tx *bolt.Tx) error {
			b := batch{store: s, direct: true, buffers: new(buffers)}
			return b.inside(tx, func() error {
				for size := 0; n < len(keys) && size < foldBytes; n++ {
					key, is := []byte(keys[n]), j.at[keys[n]]
					value := b.view.placed(key, is)
					if is.length > 0 && value == nil {
						return unusable("a part of its journal is missing")
					}
					if err := b.settle(key, value); err != nil {
						return err
					}
					size += len(key) + len(value)
				}
				if done = n == len(keys); !done {
					return nil
				}
				return b.dropJournal(tx)
			})
		})
		if err != nil {
			return fmt.Errorf("the journal could not be folded: %w", err)
		}
		keys = keys[n:]
	}
	j.folded()
	return nil
}

// dropJournal deletes the journal. The journal is missing if an earlier transaction deleted it although that
// transaction reported an error.
func (b *batch) dropJournal(tx *bolt.Tx) error {
	if b.view.journal == nil {
		return nil
	}
	if err := b.view.journal.ForEach(func(part, _ []byte) error { b.sum.toggle(part); return nil }); err != nil {
		return err
	}
	return tx.DeleteBucket(journalBucket)
}

// journal adds the places of a transaction's staged changes, once the transaction is written.
func (b *batch) journal() {
	if !b.direct && len(b.staged.at) > 0 {
		b.store.journal.add(&b.staged, len(b.values))
	}
}

// journals reports whether the store uses a journal.
func (s *Store) journals() bool { return s.opts.MaxBytes == 0 || s.opts.MaxBytes >= journalRoom }
