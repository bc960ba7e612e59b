// Package members stores the members of a set: found by their keys, and in the order of their
// last change. It also encodes chunks of them for new subscribers, and remembers the names of
// removed ones.
//
// A set may have hundreds of thousands of members, so each is a record of 16 bytes. Records are
// in chunks, in the order of the changes. A member that changes gets a new record at the end,
// and its old record becomes free. Chunks that are nearly empty are merged.
//
// Nothing here is safe for concurrent use: the set's lock guards it.
package members

import (
	"iter"
	"math"
	"strings"

	"github.com/xds-relay/xds-relay/cache/resource"
	"github.com/xds-relay/xds-relay/internal/hashtable"
)

// packLen is the maximal number of members of two chunks that are merged. It is below chunkLen, so
// that not every change merges chunks.
const packLen = chunkLen * 3 / 4

// exception has data that only few members have.
type exception struct {
	key   string // the key, if it is not the resource's name
	added uint64 // Member.Added, if it is too far below Seq for a record's flags
}

// Member is one member of a set, present or removed.
type Member struct {
	pos      position
	Resource *resource.Resource // the last one, if Removed; nil if there is no such member
	Removed  bool
	// Added is the seq at which the member was added. It stays the same if the member comes back
	// while its removal is remembered. Seq is the seq of its last change.
	Added, Seq uint64
}

// Present reports whether the member exists and is not removed.
func (m *Member) Present() bool { return m.Resource != nil && !m.Removed }

// Members are the members of a set by their keys (cache.Change.Name). Mostly a key is the
// resource's name. The zero value is empty.
type Members struct {
	table       hashtable.Table[position]
	chunks      []*chunk // by their numbers
	free        []uint32 // the free numbers
	front, back *chunk   // in the order of the changes
	exceptions  map[position]exception
}

// Len returns the number of members, including removed ones.
func (ms *Members) Len() int { return ms.table.Len() }

// Reserve makes room for n members.
func (ms *Members) Reserve(n int) { ms.table.Reserve(n, ms.keyAt) }

func (ms *Members) chunkOf(pos position) (*chunk, int) {
	return ms.chunks[pos/positionsPerChunk], int(pos % positionsPerChunk)
}

// Key returns a member's key. The string may share the resource's bytes: see
// resource.Resource.Name.
func (ms *Members) Key(m Member) string { return ms.keyAt(m.pos) }

func (ms *Members) keyAt(pos position) string {
	c, i := ms.chunkOf(pos)
	if r := &c.records[i]; r.flags&exceptional == 0 {
		return r.resource.Name()
	}
	if o := ms.exceptions[pos]; o.key != "" {
		return o.key
	}
	return c.records[i].resource.Name()
}

// Get returns the member with a key.
func (ms *Members) Get(key string) (m Member) {
	if pos, found := ms.table.Get(key, ms.keyAt); found {
		c, i := ms.chunkOf(pos)
		m = ms.read(c, i)
	}
	return m
}

func (ms *Members) read(c *chunk, i int) Member {
	r := &c.records[i]
	m := Member{
		pos: c.position(i), Resource: r.resource, Removed: r.flags&removed != 0,
		Seq: c.base + uint64(r.seq),
	}
	m.Added = m.Seq - uint64(r.flags>>ageShift)
	if r.flags&exceptional != 0 {
		if o := ms.exceptions[m.pos]; o.added != 0 {
			m.Added = o.added
		}
	}
	return m
}

// Put stores a member, new or changed, at the end of the order, and sets its position.
func (ms *Members) Put(key string, m *Member) {
	c := ms.back
	if c != nil && len(c.records) == cap(c.records) && 2*c.live <= len(c.records) {
		ms.pack(c, nil)
	}
	if c == nil || len(c.records) == chunkLen || m.Seq-c.base > math.MaxUint32 {
		c = ms.grow(m.Seq)
	}
	old, found := ms.table.Get(key, ms.keyAt)
	if len(c.records) == cap(c.records) {
		// 1, 3, and so on to chunkLen.
		c.records = append(make([]record, 0, 2*len(c.records)+1), c.records...)
	}
	m.pos = c.position(len(c.records))
	c.records = append(c.records, record{})
	c.live++
	ms.write(key, m)
	if !found {
		ms.table.Put(key, m.pos, ms.keyAt)
		return
	}
	ms.table.Replace(key, old, m.pos)
	ms.vacate(old)
}

// SetResource replaces a member's resource. The member keeps its place in the order.
func (ms *Members) SetResource(m Member, r *resource.Resource) {
	key := ms.Key(m)
	m.Resource = r
	ms.write(key, &m)
}

// write stores a member's record.
func (ms *Members) write(key string, m *Member) {
	c, i := ms.chunkOf(m.pos)
	age := m.Seq - m.Added
	flags := uint32(age) << ageShift
	var o exception
	if age >= 1<<(32-ageShift) {
		flags, o.added = 0, m.Added
	}
	if m.Removed {
		flags |= removed
	}
	if m.Resource.Name() != key {
		o.key = strings.Clone(key)
	}
	if o != (exception{}) {
		if ms.exceptions == nil {
			ms.exceptions = map[position]exception{}
		}
		ms.exceptions[m.pos] = o
		flags |= exceptional
	} else if ms.exceptions != nil {
		delete(ms.exceptions, m.pos)
	}
	c.records[i] = record{resource: m.Resource, seq: uint32(m.Seq - c.base), flags: flags}
	c.changed()
}

// Remove deletes a member.
func (ms *Members) Remove(m Member) {
	ms.table.Remove(ms.Key(m), ms.keyAt)
	ms.vacate(m.pos)
}

// vacate frees a record.
func (ms *Members) vacate(pos position) {
	c, i := ms.chunkOf(pos)
	if c.records[i].flags&exceptional != 0 {
		delete(ms.exceptions, pos)
	}
	c.records[i] = record{seq: c.records[i].seq}
	c.changed()
	c.live--
	if c == ms.back {
		return
	}
	ms.tidy(c)
}

// tidy unlinks a chunk that is empty, or merges it with a neighbour if both are nearly empty.
func (ms *Members) tidy(c *chunk) {
	fits := func(a, b *chunk) bool {
		return a != nil && b != nil && b != ms.back && a.live+b.live <= packLen &&
			b.base-a.base <= math.MaxUint32-b.span()
	}
	switch {
	case c.live == 0:
		ms.unlink(c)
	case fits(c.prev, c):
		ms.pack(c.prev, c)
	case fits(c, c.next):
		ms.pack(c, c.next)
	}
}

// pack removes the free records of a chunk. If b, the next chunk, is not nil, pack moves its members
// to the end of a.
func (ms *Members) pack(a, b *chunk) {
	from := []*chunk{a}
	size := a.live
	if b != nil {
		from, size = append(from, b), size+b.live
	}
	// The last chunk keeps room for more members.
	records := make([]record, 0, cap(a.records))
	if a != ms.back {
		records = make([]record, 0, size)
	}
	moved := map[position]exception{}
	var olds []position
	for _, c := range from {
		for i, r := range c.records {
			if r.resource == nil {
				continue
			}
			old, pos := c.position(i), a.position(len(records))
			olds = append(olds, old)
			if r.flags&exceptional != 0 {
				moved[pos] = ms.exceptions[old]
				delete(ms.exceptions, old)
			}
			r.seq += uint32(c.base - a.base)
			records = append(records, r)
		}
	}
	a.records, a.live = records, size
	a.changed()
	for pos, o := range moved {
		ms.exceptions[pos] = o
	}
	// In this order, each position is vacated before another member moves there.
	for i, old := range olds {
		if pos := a.position(i); pos != old {
			ms.table.Replace(ms.keyAt(pos), old, pos)
		}
	}
	if b != nil {
		ms.unlink(b)
	}
}

// grow adds a chunk to the end.
func (ms *Members) grow(base uint64) *chunk {
	c := &chunk{base: base, prev: ms.back}
	if n := len(ms.free); n > 0 {
		c.number, ms.free = ms.free[n-1], ms.free[:n-1]
		ms.chunks[c.number] = c
	} else {
		c.number = uint32(len(ms.chunks))
		ms.chunks = append(ms.chunks, c)
	}
	last := ms.back
	ms.back = c
	if last == nil {
		ms.front = c
		return c
	}
	last.next = c
	ms.tidy(last)
	return c
}

func (ms *Members) unlink(c *chunk) {
	if c.prev == nil {
		ms.front = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		ms.back = c.prev
	} else {
		c.next.prev = c.prev
	}
	ms.chunks[c.number] = nil
	ms.free = append(ms.free, c.number)
}

// After iterates over the members that changed after seq, in the order of their changes. They
// must not change during the iteration.
func (ms *Members) After(seq uint64) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		c, i := ms.start(seq)
		for ; c != nil; c, i = c.next, 0 {
			for ; i < len(c.records); i++ {
				if c.records[i].resource != nil && !yield(ms.read(c, i)) {
					return
				}
			}
		}
	}
}

// AfterInChunks is like After, but returns whole encoded chunks where possible, each with a Member
// that has only the chunk's last Seq.
func (ms *Members) AfterInChunks(seq uint64, o Encoding) iter.Seq2[*EncodedChunk, Member] {
	return func(yield func(*EncodedChunk, Member) bool) {
		c, i := ms.start(seq)
		for ; c != nil; c, i = c.next, 0 {
			if i == 0 && o.MaxBytes > 0 {
				if e := c.encode(&o); e != nil {
					if !yield(e, Member{Seq: c.end()}) {
						return
					}
					continue
				}
			}
			for ; i < len(c.records); i++ {
				if c.records[i].resource != nil && !yield(nil, ms.read(c, i)) {
					return
				}
			}
		}
	}
}

// DropUnused drops the encoded chunks that were not used since the last call. It returns the bytes of those that are left.
func (ms *Members) DropUnused() (left int) {
	for c := ms.front; c != nil; c = c.next {
		left += c.encoded.DropUnused()
	}
	return left
}

// All iterates over all members, as After does.
func (ms *Members) All() iter.Seq[Member] { return ms.After(0) }

// start returns the position of the first record after seq. It searches from the end, which is
// mostly near.
func (ms *Members) start(seq uint64) (*chunk, int) {
	if seq == 0 {
		return ms.front, 0
	}
	for c := ms.back; c != nil; c = c.prev {
		if c.base > seq {
			continue
		}
		for i := len(c.records) - 1; i >= 0; i-- {
			if r := &c.records[i]; c.base+uint64(r.seq) <= seq {
				return c, i + 1
			}
		}
	}
	return ms.front, 0
}
