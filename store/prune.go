package store

import (
	bolt "go.etcd.io/bbolt"

	"github.com/xds-relay/xds-relay/cache"
)

// makeRoom gives up what nobody asks for any more, as of clients that are gone for good, and then
// notes once more what had no room.
func (s *Store) makeRoom() {
	freed, err := s.prune()
	if err != nil {
		s.log.Error("no room could be made in the store", "reason", err)
		return
	}
	if freed == 0 {
		return
	}
	s.log.Info("records were given up for which no client asks, to make room in the store", "records", freed)
	s.noteLacking()
}

// noteLacking notes once more what had no room.
func (s *Store) noteLacking() {
	lacking := s.lacking
	s.lacking = map[cache.Key]struct{}{}
	for k := range lacking {
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

// prune deletes the records of topics that the cache does not have, and those that cannot be read.
func (s *Store) prune() (deleted int, err error) {
	watched := map[cache.Key]bool{}
	err = guard(func() error {
		return s.opts.update(s.db, func(tx *bolt.Tx) error {
			records := tx.Bucket(recordsBucket)
			var keys [][]byte
			c := records.Cursor()
			for key, value := c.First(); key != nil; key, value = c.Next() {
				r, err := s.open(key, value)
				if err == nil {
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
	})
	return deleted, err
}
