package cache

import (
	"iter"
	"math"
	"strings"
	"weak"
)

// The members of a set: found by their keys, and in the order of their last change.
//
// There may be hundreds of thousands, so each is a record of 16 bytes. The records are
// in chunks, where they were put when the member changed last; what was there before is
// free until the chunk is so empty that its records can go to another.

// chunkLen is the most records of a chunk: with 8 bytes of the allocator's own, as many
// as are in 4 KiB.
const chunkLen = 255

// packLen is how many members two chunks have together at most when they become one. It
// is less than a chunk has room for, or the next change would be another reason.
const packLen = chunkLen * 3 / 4

// place is where a record is: the number of its chunk times placesOf, and its number
// there.
type position uint32

const positionsPerChunk = 256

type chunk struct {
	number  uint32
	base    uint64 // not above the seq of any member in it
	records []record
	live    int // how many are of members

	encoded  weak.Pointer[EncodedChunk] // what run returned last, if nothing has changed since
	tooSmall int                        // the most bytes that are too few for a run, as far as it is known

	prev, next *chunk
}

// record is one resource of a set, or the memory of one.
type record struct {
	resource *Resource // nil if the record is free
	seq      uint32    // less the chunk's base; it stays when the record becomes free
	flags    uint32    // removed, odd, and the rest is seq less born
}

const (
	removed uint32 = 1 << iota
	// odd says that what does not fit into the record is in members.odd.
	exceptional
	ageShift = iota
)

// oddity is what few members have.
type exception struct {
	key  string // if it is not the name that the resource has
	born uint64 // if that is very long ago
}

// member is what a record says.
type member struct {
	pos      position
	resource *Resource // what it is; what it was, if it is removed; nil if there is no such member
	removed  bool
	added    uint64 // seq of its coming; coming back while its removal is remembered is no new coming
	seq      uint64 // of its last change
}

func (m *member) present() bool { return m.resource != nil && !m.removed }

// members are those of a set by their keys (Change.Name), which mostly are the names
// that the resources have.
type members struct {
	index       index[position]
	chunks      []*chunk // by their numbers
	free        []uint32 // the numbers that are free
	front, back *chunk   // in the order of the changes
	exceptions  map[position]exception
}

func (ms *members) len() int { return ms.index.used }

// reserve makes room for n members.
func (ms *members) reserve(n int) { ms.index.reserve(n, ms.keyAt) }

func (ms *members) chunkOf(at position) (*chunk, int) {
	return ms.chunks[at/positionsPerChunk], int(at % positionsPerChunk)
}

// key is what a member is kept under. It may be a part of its resource: see
// Resource.Name.
func (ms *members) key(m member) string { return ms.keyAt(m.pos) }

func (ms *members) keyAt(at position) string {
	c, i := ms.chunkOf(at)
	if r := &c.records[i]; r.flags&exceptional == 0 {
		return r.resource.Name()
	}
	if o := ms.exceptions[at]; o.key != "" {
		return o.key
	}
	return c.records[i].resource.Name()
}

// get returns the member with a key.
func (ms *members) get(key string) (m member) {
	if at, found := ms.index.get(key, ms.keyAt); found {
		c, i := ms.chunkOf(at)
		m = ms.read(c, i)
	}
	return m
}

func (ms *members) read(c *chunk, i int) member {
	r := &c.records[i]
	m := member{
		pos: c.position(i), resource: r.resource, removed: r.flags&removed != 0,
		seq: c.base + uint64(r.seq),
	}
	m.added = m.seq - uint64(r.flags>>ageShift)
	if r.flags&exceptional != 0 {
		if o := ms.exceptions[m.pos]; o.born != 0 {
			m.added = o.born
		}
	}
	return m
}

func (c *chunk) position(i int) position { return position(c.number*positionsPerChunk) + position(i) }

// put puts a member, new or changed, to the end of the order, and sets m.at.
func (ms *members) put(key string, m *member) {
	c := ms.back
	if c != nil && len(c.records) == cap(c.records) && 2*c.live <= len(c.records) {
		ms.pack(c, nil)
	}
	if c == nil || len(c.records) == chunkLen || m.seq-c.base > math.MaxUint32 {
		c = ms.grow(m.seq)
	}
	was, found := ms.index.get(key, ms.keyAt)
	if len(c.records) == cap(c.records) {
		// 1, 3, and so on to chunkLen.
		c.records = append(make([]record, 0, 2*len(c.records)+1), c.records...)
	}
	m.pos = c.position(len(c.records))
	c.records = append(c.records, record{})
	c.live++
	ms.write(key, m)
	if !found {
		ms.index.put(key, m.pos, ms.keyAt)
		return
	}
	ms.index.replace(key, was, m.pos)
	ms.vacate(was)
}

// set gives a member another resource, without a change of its place in the order.
func (ms *members) set(m member, r *Resource) {
	key := ms.key(m)
	m.resource = r
	ms.write(key, &m)
}

// write makes a member's record.
func (ms *members) write(key string, m *member) {
	c, i := ms.chunkOf(m.pos)
	age := m.seq - m.added
	flags := uint32(age) << ageShift
	var o exception
	if age >= 1<<(32-ageShift) {
		flags, o.born = 0, m.added
	}
	if m.removed {
		flags |= removed
	}
	if m.resource.Name() != key {
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
	c.records[i] = record{resource: m.resource, seq: uint32(m.seq - c.base), flags: flags}
	c.changed()
}

// remove forgets a member.
func (ms *members) remove(m member) {
	ms.index.remove(ms.key(m), ms.keyAt)
	ms.vacate(m.pos)
}

// vacate makes a record free.
func (ms *members) vacate(at position) {
	c, i := ms.chunkOf(at)
	if c.records[i].flags&exceptional != 0 {
		delete(ms.exceptions, at)
	}
	c.records[i] = record{seq: c.records[i].seq}
	c.changed()
	c.live--
	if c == ms.back {
		return
	}
	ms.tidy(c)
}

// tidy puts together what is left of two chunks.
func (ms *members) tidy(c *chunk) {
	fits := func(a, b *chunk) bool {
		return a != nil && b != nil && b != ms.back && a.live+b.live <= packLen &&
			b.base-a.base <= math.MaxUint32-chunkSpan(b)
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

// chunkSpan is how far the members of a chunk are from its base.
func chunkSpan(c *chunk) (span uint64) {
	for i := range c.records {
		span = max(span, uint64(c.records[i].seq))
	}
	return span
}

// pack moves the members of a chunk, and of the next one if that is b, to the beginning
// of the first.
func (ms *members) pack(a, b *chunk) {
	from := []*chunk{a}
	size := a.live
	if b != nil {
		from, size = append(from, b), size+b.live
	}
	// In the last chunk there is to be room for more.
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
			old, at := c.position(i), a.position(len(records))
			olds = append(olds, old)
			if r.flags&exceptional != 0 {
				moved[at] = ms.exceptions[old]
				delete(ms.exceptions, old)
			}
			r.seq += uint32(c.base - a.base)
			records = append(records, r)
		}
	}
	a.records, a.live = records, size
	a.changed()
	for at, o := range moved {
		ms.exceptions[at] = o
	}
	// In order: what was at a place has left it before another comes there.
	for i, old := range olds {
		if at := a.position(i); at != old {
			ms.index.replace(ms.keyAt(at), old, at)
		}
	}
	if b != nil {
		ms.unlink(b)
	}
}

// grow adds a chunk to the end.
func (ms *members) grow(base uint64) *chunk {
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

func (ms *members) unlink(c *chunk) {
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

// after yields the members that changed after seq, in the order of their changes. They
// must not change meanwhile.
func (ms *members) after(seq uint64) iter.Seq[member] {
	return func(yield func(member) bool) {
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

// all yields all members, as after does.
func (ms *members) all() iter.Seq[member] { return ms.after(0) }

// start returns where the members begin that changed after seq. Mostly that is near the
// end.
func (ms *members) start(seq uint64) (*chunk, int) {
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
