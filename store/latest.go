package store

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// latest remembers the records that were written last, so that the store need not read a record to find out whether
// it has changed. It is a hash table of fixed size in which newer records replace older ones.
type latest [1 << latestBits]written

// latestBits is the size of the table in bits. The table takes 1 MiB, and holds most of 1<<latestBits resources that
// change repeatedly.
const latestBits = 16

// written are hashes of a record's key and content. The zero value is no record.
type written struct{ key, content uint64 }

func (l *latest) at(key []byte) (*written, uint64) {
	hash := xxhash.Sum64(key)
	return &l[hash>>(64-latestBits)], hash | 1
}

// is reports whether a record equals the one that was last written under its key. known is false if the table does
// not know.
func (l *latest) is(key []byte, r *Record) (is, known bool) {
	w, hash := l.at(key)
	return w.content == r.fingerprint(), w.key == hash
}

func (l *latest) put(key []byte, r *Record) {
	w, hash := l.at(key)
	*w = written{hash, r.fingerprint()}
}

func (l *latest) forget(key []byte) {
	if w, hash := l.at(key); w.key == hash {
		*w = written{}
	}
}

// fingerprint is a hash of the fields that same compares.
func (r *Record) fingerprint() uint64 {
	var h xxhash.Digest
	h.Reset()
	text := func(s string) {
		_, _ = h.WriteString(s)
		_, _ = h.Write([]byte{0})
	}
	text(r.Server)
	if r.Resource != nil {
		var b [9]byte
		binary.BigEndian.PutUint64(b[:], r.Resource.Hash())
		if r.Resource.Alias() {
			b[8] = 1
		}
		_, _ = h.Write(b[:])
		text(r.Resource.Version())
		text(r.Resource.Name())
	}
	return h.Sum64()
}
