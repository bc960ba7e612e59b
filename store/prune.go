package store

import (
	"math"

	bolt "go.etcd.io/bbolt"

	"github.com/xds-relay/xds-relay/cache"
)

// makeRoom deletes the records of topics that no client requests, and then notes again the resources that did not
// fit.
func (s *Store) makeRoom() {
	freed, err := s.prune()
	if err != nil {
		s.log.Error("the store could not delete records to make room", "reason", err)
		return
	}
	if freed == 0 {
		return
	}
	s.log.Info("the store deleted records that no client requests, to make room", "records", freed)
	s.noteLacking()
}

// noteLacking notes again the resources that did not fit.
func (s *Store) noteLacking() {
	lacking := s.lacking
	s.lacking = map[cache.Key]struct{}{}
	s.noteAgain(lacking)
}

// noteAgain notes the cache's resources of topics.
func (s *Store) noteAgain(topics map[cache.Key]struct{}) {
	for k := range topics {
		contents := map[string]*cache.Resource{}
		s.opts.Contents(k, func(key string, r *cache.Resource) { contents[key] = r })
		if len(contents) == 0 {
			continue
		}
		s.Note("", func(n *Notes) {
			for key, r := range contents {
				if !k.IsSet() {
					n.Entry(k, r)
				} else {
					n.Member(k, key, r)
				}
			}
			if k.IsSet() {
				n.Whole(k, true)
			}
		})
	}
}

// prune deletes the records of topics that the cache does not have, and unreadable records.
func (s *Store) prune() (deleted int, err error) {
	watched, lost := map[cache.Key]bool{}, lostMembers{}
	if err := s.fold(); err != nil {
		return 0, err
	}
	err = s.transact(func(tx *bolt.Tx) error {
		records := tx.Bucket(recordsBucket)
		var keys [][]byte
		c := records.Cursor()
		for key, value := c.First(); key != nil; key, value = c.Next() {
			r, err := s.open(key, value)
			if err != nil {
				lost.add(key)
			} else if !lost.has(key) {
				is, known := watched[r.Topic]
				if !known {
					is = s.opts.Watched(r.Topic)
					watched[r.Topic] = is
				}
				if is {
					continue
				}
			}
			keys = append(keys, append([]byte(nil), key...))
		}
		deleted = len(keys)
		about := tx.Bucket(aboutBucket)
		sum := sumOf(about)
		for _, key := range keys {
			if err := records.Delete(key); err != nil {
				return err
			}
			sum.toggle(key)
		}
		return sum.put(about)
	})
	return deleted, err
}

// resize applies the newest bound of the file. It runs between transactions, when no other goroutine reads the bound.
func (s *Store) resize() {
	before, now := s.opts.MaxBytes, s.maxBytes.Load()
	if now == before {
		return
	}
	s.opts.MaxBytes = now
	s.db.MaxSize, s.db.AllocSize = int(now), allocSizeOf(now)
	if now == 0 || before != 0 && now > before {
		s.noteLacking()
	}
}

// roomIn returns how many bytes may still be written.
func (b *batch) roomIn(tx *bolt.Tx) int64 {
	s := b.store
	switch {
	case b.full:
		return 0
	case s.opts.MaxBytes == 0:
		return math.MaxInt64 / 2
	}
	// A transaction copies the pages that it changes before it frees them. Folding the journal takes the room of its
	// records again.
	return s.opts.MaxBytes - s.opts.MaxBytes/roomParts - used(tx) - int64(s.journal.bytes)
}

// batchSize is how many bytes one transaction writes.
func (s *Store) batchSize() int {
	if s.opts.MaxBytes == 0 {
		return batchBytes
	}
	return int(min(batchBytes, s.opts.MaxBytes/roomParts))
}

// used returns how many bytes of the file are not free.
func used(tx *bolt.Tx) int64 {
	stats := tx.DB().Stats()
	free := stats.FreePageN + stats.PendingPageN
	return tx.Size() - int64(free)*int64(tx.DB().Info().PageSize)
}
