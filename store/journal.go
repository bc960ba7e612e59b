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

// The journal: a transaction writes what it changes as one part of the journal, which is two values that are
// beside each other on disk. Written to the places of the records, each change would be a page of its own, since the keys
// are hashes. When the journal is large enough, its newest records are put where they belong, in the order of
// their keys (fold). By then most of what changes again and again is there only once.
//
// Journal and records are in one database, so a transaction of bbolt holds for both: there is nothing to
// recover. Where a record is in the journal is in memory (places), and read when the file is opened.

const (
	// journalBytes and journalRecords bound the journal, and so what its places cost in memory.
	journalBytes   = 16 << 20
	journalRecords = 1 << 16
	// foldBytes is how much of it one transaction puts where it belongs: the next one can write to the pages
	// that are free then.
	foldBytes = 2 << 20
	// journalRoom is the least MaxBytes with which there is a journal: when it is folded, it is on disk twice.
	journalRoom = 32 * journalBytes
)

var (
	journalBucket = []byte("journal")
	indexKey      = []byte("index") // of a part: the keys of its records, and how long the records are
	valuesKey     = []byte("values")
)

// place is where in the journal a record is. With length 0 the record is deleted.
type place struct {
	part         uint64
	from, length int
}

// places have places by the keys of records.
type places struct {
	at map[string]place
	// members are the keys that are those of members, by what they begin with.
	members map[string][]string
}

// prefixLen is how long that is which the keys of a set's members begin with.
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

// journal is what a store knows of its journal. Only the goroutine that writes changes it.
type journal struct {
	mu sync.Mutex // held by who changes it, and by others who read it; only the locks of the database come after it
	places
	first, next uint64 // parts
	bytes       int    // of the records in it
}

func (j *journal) empty() bool { return j.first == j.next }

// full reports whether it has most bytes, or too many records.
func (j *journal) full(most int) bool { return j.bytes > most || len(j.at) > journalRecords }

// add adds a part that has been written.
func (j *journal) add(staged *places, size int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for key, is := range staged.at {
		j.put(key, is)
	}
	j.next++
	j.bytes += size
}

// folded empties the journal.
func (j *journal) folded() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.clear()
	j.first, j.bytes = j.next, 0
}

// of returns the places of some keys and of all that begin with one of them; without keys, all. The caller holds mu.
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

// bound returns what the index of a part is bound to.
func bound(part []byte) []byte { return append(append([]byte(nil), journalBucket...), part...) }

// read reads where the records in a journal are. An error is an unusableError: without the index of a part
// nobody knows which records are older than what was lost.
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

// cutBytes returns the bytes that b begins with, after their length, and the rest.
func cutBytes(b []byte) (value, rest []byte, ok bool) {
	length, size := binary.Uvarint(b)
	if size <= 0 || length > uint64(len(b)-size) {
		return nil, nil, false
	}
	b = b[size:]
	return b[:length], b[length:], true
}

// view is what a transaction has of the records, as they are with the journal.
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

// placed returns a record that was in the journal before the transaction began. It may have been folded
// by then, and be where it belongs.
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

// all yields the records whose keys begin with a prefix, in the order of the keys.
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

// buffers are of one transaction. The next one uses them again.
type buffers struct{ record, index, values []byte }

func (b *buffers) clear() {
	if cap(b.values) > buffersMost {
		*b = buffers{}
	}
	b.index, b.values = b.index[:0], b.values[:0]
}

// buffersMost is how large they are at most between transactions.
const buffersMost = 1 << 20

// stage has the transaction change a record, or delete it if there is no value. Its changes are
// staged until it knows all of them.
func (b *batch) stage(key, value []byte) {
	b.index = binary.AppendUvarint(b.index, uint64(len(key)))
	b.index = append(b.index, key...)
	b.index = binary.AppendUvarint(b.index, uint64(len(value)))
	b.staged.put(string(key), place{b.store.journal.next, len(b.values), len(value)})
	b.values = append(b.values, value...)
}

// lengthOf returns how long the record of a key is, -1 if there is none.
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

// there reports whether there is a record of a key.
func (b *batch) there(key []byte) bool { return b.lengthOf(key) >= 0 }

// stored returns the record of a key.
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

// keysOf returns the keys of the members of a set, of those that are deleted, too.
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

// finish writes what is staged: to the journal, or where it belongs.
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
	part := journal.Bucket(key) // of a transaction that is there although it failed
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

// settle puts a record where it belongs, or deletes it if there is no value.
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

// fold puts what the journal has where it belongs, and empties it. If it ends early it has
// changed nothing that can be read.
func (s *Store) fold() error {
	j := s.journal
	if j.empty() {
		return nil
	}
	keys := slices.Sorted(maps.Keys(j.at))
	for done := false; !done; {
		n := 0
		err := guard(func() error {
			return s.opts.update(s.db, func(tx *bolt.Tx) error {
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
		})
		if err != nil {
			return fmt.Errorf("the journal could not be folded: %w", err)
		}
		keys = keys[n:]
	}
	j.folded()
	return nil
}

// dropJournal deletes the journal. It is gone already if the transaction that deleted it is there although it failed.
func (b *batch) dropJournal(tx *bolt.Tx) error {
	if b.view.journal == nil {
		return nil
	}
	if err := b.view.journal.ForEach(func(part, _ []byte) error { b.sum.toggle(part); return nil }); err != nil {
		return err
	}
	return tx.DeleteBucket(journalBucket)
}

// journal adds what a transaction has staged to what is known of the journal, once it is written.
func (b *batch) journal() {
	if !b.direct && len(b.staged.at) > 0 {
		b.store.journal.add(&b.staged, len(b.values))
	}
}

// journals reports whether there is to be a journal.
func (s *Store) journals() bool { return s.opts.MaxBytes == 0 || s.opts.MaxBytes >= journalRoom }
