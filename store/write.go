package store

import (
	"errors"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/secrets"
)

// This file has the goroutine that writes. No other goroutine writes to the file.

const (
	// commitEvery is how long a note waits for others that can be written with it.
	commitEvery = 150 * time.Millisecond
	// retryBase and retryMax bound the time between attempts to write to a failing disk.
	retryBase = time.Second
	retryMax  = time.Minute
	// batchBytes bounds the size of one transaction: bbolt keeps it in memory until it commits.
	batchBytes = 8 << 20
	// roomParts: 1/roomParts of MaxBytes is reserved for a transaction's own writes.
	roomParts = 8
	// logEvery is the shortest time between log lines about resources that are not stored.
	logEvery = time.Minute
	// pruneEvery is the shortest time between deletions of records to make room.
	pruneEvery = 10 * time.Minute
)

// write writes notes until the store is closed.
func (s *Store) write() {
	defer close(s.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	inspect := time.NewTicker(inspectEvery)
	defer inspect.Stop()
	retry := retryBase
	for {
		select {
		case <-s.wake:
		case <-inspect.C:
			if s.inspect() == nil {
				continue
			}
		case written := <-s.flush:
			_ = s.commit()
			close(written)
			continue
		case r := <-s.rekeys:
			r.done <- s.rekey(r)
			continue
		case <-s.stop:
			s.end()
			return
		}
		wait := commitEvery
		for {
			timer.Reset(wait)
			var written chan<- struct{}
			select {
			case <-timer.C:
			case written = <-s.flush:
			case r := <-s.rekeys:
				r.done <- s.rekey(r)
			case <-s.stop:
				s.end()
				return
			}
			err := s.commit()
			if written != nil {
				close(written)
			}
			if err == nil {
				retry = retryBase
				break
			}
			wait, retry = retry, min(2*retry, retryMax)
		}
	}
}

// end writes the remaining notes, and folds the journal.
func (s *Store) end() {
	if err := s.commit(); err == nil {
		_ = s.fold() // on an error, the records stay in the journal
	}
}

// Flush waits until everything noted before can be read, or cannot be written. It waits no longer than most.
func (s *Store) Flush(most time.Duration) {
	s.mu.Lock()
	waits := s.noted.count > 0 || s.writing
	s.mu.Unlock()
	if !waits || s.stats.failure.Load() != nil {
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	written := make(chan struct{})
	select {
	case s.flush <- written:
	case <-s.done:
		return
	case <-timer.C:
		return
	}
	select {
	case <-written:
	case <-s.done:
	case <-timer.C:
	}
}

// Commits returns the number of committed transactions. While it does not change, readers see the same records.
func (s *Store) Commits() uint64 { return s.stats.commits.Load() }

// commit writes all notes.
func (s *Store) commit() error {
	renewed := s.renew()
	s.resize()
	taken := s.take()
	defer s.took(taken)
	if renewed != nil {
		s.putBack(taken)
		s.fails(renewed)
		return renewed
	}
	if taken.count == 0 && !s.journal.full(s.opts.journalBytes) {
		s.fails(nil)
		return nil
	}
	taken.addContents(s.opts.Contents)
	b := batch{store: s, notes: taken, direct: !s.journals(), buffers: &s.buffers}
	var err error
	if b.direct {
		err = s.fold()
	}
	if err == nil {
		err = b.write()
	}
	if err != nil {
		s.stats.failures.Add(1)
		s.putBack(b.left())
	}
	s.fails(err)
	s.logLacking(&b)
	if err == nil && len(s.lacking) > 0 && time.Since(s.pruned) > pruneEvery {
		s.pruned = time.Now()
		s.makeRoom()
	}
	return err
}

// logLacking logs which resources are not stored, at most once in logEvery.
func (s *Store) logLacking(b *batch) {
	if b.secrets+b.lacking == 0 || time.Since(s.logged) < logEvery {
		return
	}
	s.logged = time.Now()
	if b.secrets > 0 {
		s.log.Warn("resources with secrets in them are not stored, and no set that has one: set store.key_file", "resources", b.secrets)
	}
	if b.lacking > 0 {
		s.log.Warn("resources are not stored: the store has reached store.max_bytes", "resources", b.lacking, "max_bytes", s.opts.MaxBytes)
	}
}

// batch has the notes that are being written, in one or more transactions.
type batch struct {
	store  *Store
	notes  *notes
	direct bool // writes to the records' places; the journal is empty
	full   bool // bbolt reported that there is no room
	*buffers

	// For one transaction:
	view   *view
	sum    sum
	staged places // see stage
	bytes  int
	room   int64 // the bytes that are left; it may be negative
	sets   map[cache.Key]membersOf

	written, writtenBytes, secrets, lacking int
}

// errMore ends a transaction that has reached its size limit.
var errMore = errors.New("there is more to be written")

// write writes the notes, and removes those that are written.
func (b *batch) write() error {
	b.notes.pair()
	for {
		var done done
		more := false
		b.written, b.writtenBytes = 0, 0
		err := b.store.transact(func(tx *bolt.Tx) error {
			return b.inside(tx, func() error {
				err := b.fill(&done)
				if more = errors.Is(err, errMore); more {
					return nil
				}
				return err
			})
		})
		if err != nil {
			clear(b.store.latest[:]) // the records of the failed transaction are not stored
		}
		if errors.Is(err, berrors.ErrMaxSizeReached) && !b.full {
			// A part of the journal needs adjacent free pages, which records do not.
			if !b.direct && b.store.fold() == nil {
				b.direct = true
			} else {
				b.full = true
			}
			continue
		}
		if err != nil {
			return err
		}
		b.journal()
		stats := &b.store.stats
		stats.commits.Add(1) // only now: after a change of Commits, readers rely on seeing the new records
		stats.written.Add(uint64(b.written))
		stats.bytes.Add(uint64(b.writtenBytes))
		b.takeAway(&done, !more)
		if b.store.journal.full(b.store.opts.journalBytes) {
			err = b.store.fold()
		}
		if err != nil || !more {
			return err
		}
	}
}

// left returns the notes that are not written yet.
func (b *batch) left() *notes { return b.notes }

// done is what one transaction has written: entries, members, and sets without anything left to write.
type done struct {
	entries, sets []cache.Key
	members       []memberOf
}

type memberOf struct {
	set  cache.Key
	name string
}

// takeAway removes the notes that one transaction has written.
func (b *batch) takeAway(done *done, all bool) {
	if all {
		b.notes.clear()
		return
	}
	for _, k := range done.entries {
		delete(b.notes.entries, k)
	}
	for _, m := range done.members {
		delete(b.notes.sets[m.set].members, m.name)
	}
	for _, k := range done.sets {
		delete(b.notes.sets, k)
	}
}

// fill writes the notes that fit into one transaction, and records them in done.
func (b *batch) fill(done *done) error {
	keys := b.store.keys
	for k, st := range b.notes.entries {
		r := Record{Topic: k, Resource: st.resource, Time: st.time, Server: st.server}
		key, err := keys.of(&r)
		if err != nil {
			return err
		}
		if err := b.put(key, &r); err != nil {
			return err
		}
		if err := b.putMember(k, st); err != nil {
			return err
		}
		done.entries = append(done.entries, k)
		if b.bytes > b.store.batchSize() {
			return errMore
		}
	}
	for k, set := range b.notes.sets {
		r := Record{Topic: k, Set: true, Time: set.time, Server: set.server}
		setKey, err := keys.of(&r)
		if err != nil {
			return err
		}
		for name, st := range set.members {
			key, err := keys.member(setKey[1:], name)
			if err != nil {
				return err
			}
			if err := b.put(key, &Record{Topic: k, Member: name, Resource: st.resource, Time: st.time, Server: st.server}); err != nil {
				return err
			}
			if err := b.putName(k, name, st); err != nil {
				return err
			}
			done.members = append(done.members, memberOf{k, name})
			if b.bytes > b.store.batchSize() {
				return errMore
			}
		}
		if set.others {
			if err := b.deleteOthers(k, setKey); err != nil {
				return err
			}
		}
		if set.whole {
			if err := b.put(setKey, &r); err != nil {
				return err
			}
		}
		done.sets = append(done.sets, k)
	}
	return nil
}

// inside calls f, which writes records in a transaction.
func (b *batch) inside(tx *bolt.Tx, f func() error) error {
	b.view, b.bytes, b.sets = viewOf(tx, nil), 0, nil
	b.buffers.clear()
	b.staged = newPlaces()
	b.sum = sumOf(tx.Bucket(aboutBucket))
	b.store.stats.size.Store(tx.Size())
	b.room = b.roomIn(tx)
	if err := f(); err != nil {
		return err
	}
	if err := b.finish(tx); err != nil {
		return err
	}
	return b.sum.put(tx.Bucket(aboutBucket))
}

// put writes a key's record. It deletes the record if the resource may not be stored or does not fit: the store never
// has an outdated state.
func (b *batch) put(key []byte, r *Record) error {
	if r.Resource == nil && !r.Set {
		return b.delete(key)
	}
	return b.keep(key, r)
}

// keep is like put for a record that exists. A member without a resource stands for one that may not be stored.
func (b *batch) keep(key []byte, r *Record) error {
	s := b.store
	if r.Resource != nil && !b.storable(r) {
		if !r.isMember() {
			return b.delete(key)
		}
		r.Resource = nil // stands for a member that may not be stored
	}
	before := b.lengthOf(key)
	if before >= 0 && b.has(key, r) {
		return nil
	}
	b.record = r.appendTo(b.record[:0])
	value, err := s.seals.seal(key, b.record)
	if err != nil {
		return err
	}
	if cost := int64(len(key) + len(value)); b.room < cost && len(value) > before {
		return b.lack(r, key)
	}
	b.count(len(key)+len(value), len(value)-max(before, 0))
	s.latest.put(key, r)
	b.stage(key, value)
	return nil
}

// has reports whether the store already has this record under its key.
func (b *batch) has(key []byte, r *Record) bool {
	s := b.store
	if is, known := s.latest.is(key, r); known {
		return is
	}
	old, err := s.open(key, b.stored(key))
	if err != nil || !old.is(r) || !old.same(r) {
		return false
	}
	s.latest.put(key, r)
	return true
}

// lack deletes the record of a resource that does not fit. Its set is then no longer complete.
func (b *batch) lack(r *Record, key []byte) error {
	b.lacking++
	b.store.stats.lacking.Add(1)
	b.store.lacking[r.Topic] = struct{}{}
	if r.isMember() {
		set, err := b.store.keys.of(&Record{Topic: r.Topic, Set: true})
		if err != nil {
			return err
		}
		if err := b.delete(set); err != nil {
			return err
		}
		b.notes.sets[r.Topic].whole = false // nor is the set completed now
	}
	return b.delete(key)
}

func (b *batch) delete(key []byte) error {
	before := b.lengthOf(key)
	if before < 0 {
		return nil
	}
	b.store.latest.forget(key)
	b.count(len(key), -before)
	b.stage(key, nil)
	return nil
}

func (b *batch) count(written, grown int) {
	b.written++
	b.writtenBytes += written
	b.bytes += written
	b.room -= 2 * int64(grown) // in the worst case, pages are half full
}

// storable reports whether a resource may be stored. A resource with a TTL, or one that must not be cached, must not
// outlive its control plane's updates.
func (b *batch) storable(of *Record) bool {
	r := of.Resource
	switch {
	case r.TTL() > 0 || r.DoNotCache():
		return false
	case b.store.key == nil && secrets.Holds(r.TypeURL(), r.Value()):
		b.secrets++
		b.store.stats.secrets.Add(1)
		if b.store.secret != nil && len(b.store.secret) < maxSecretTopics {
			b.store.secret[of.Topic] = struct{}{}
		}
		return false
	}
	return true
}

// deleteOthers deletes the members of a set that the cache does not have.
func (b *batch) deleteOthers(k cache.Key, set []byte) error {
	s := b.store
	var names []string // collected first, because the set is locked during the iteration
	s.opts.Contents(k, func(name string, _ *cache.Resource) { names = append(names, name) })
	keep := make(map[string]struct{}, len(names))
	for _, name := range names {
		key, err := s.keys.member(set[1:], name)
		if err != nil {
			return err
		}
		keep[string(key)] = struct{}{}
	}
	prefix := append([]byte{memberKind}, set[1:]...)
	for _, key := range b.keysOf(prefix) {
		if _, is := keep[string(key)]; is {
			continue
		}
		if err := b.delete(key); err != nil {
			return err
		}
	}
	return nil
}
