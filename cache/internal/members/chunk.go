package members

import (
	"math"

	"github.com/xds-relay/xds-relay/cache/resource"
	"github.com/xds-relay/xds-relay/internal/recent"
)

// chunkLen is the maximal number of records of a chunk. With 8 bytes of the allocator, they fill 4 KiB.
const chunkLen = 255

// chunk has the records of members whose changes follow each other.
type chunk struct {
	number  uint32
	base    uint64 // not above the seq of any record
	records []record
	live    int // records in use

	encoded  recent.Value[EncodedChunk] // the last result of encode, unless a record has changed since
	tooSmall int                        // all smaller sizes are too small for the encoded chunk

	prev, next *chunk
}

// record is one member, present or removed.
type record struct {
	resource *resource.Resource // nil if the record is free
	seq      uint32             // relative to the chunk's base; kept when the record becomes free
	flags    uint32             // removed, exceptional, and above them Seq minus Added of the Member
}

const (
	removed uint32 = 1 << iota
	// exceptional: the member is in Members.exceptions.
	exceptional
	ageShift = iota
)

// position identifies a record: its chunk's number times positionsPerChunk, plus its index.
type position uint32

const positionsPerChunk = 256

func (c *chunk) position(i int) position { return position(c.number*positionsPerChunk) + position(i) }

// span is the largest distance of a record's seq from the base.
func (c *chunk) span() (span uint64) {
	for i := range c.records {
		span = max(span, uint64(c.records[i].seq))
	}
	return span
}

// end is the seq of the last record.
func (c *chunk) end() uint64 { return c.base + uint64(c.records[len(c.records)-1].seq) }

// changed drops the encoded chunk, because the records have changed.
func (c *chunk) changed() {
	c.encoded.Clear()
	c.tooSmall = 0
}

// Chunks of fewer members are not encoded. Neither are chunks with large members, because copying
// these saves nothing.
const (
	minEncoded        = 2
	maxBytesPerMember = 4 << 10
)

// encode returns the chunk encoded, nil if that is not possible or saves nothing. The encoded chunk is shared while it is
// in use, and for a short time after. So a set without new subscribers is not in memory twice.
func (c *chunk) encode(o *Encoding) *EncodedChunk {
	maxBytes := min(o.MaxBytes, c.live*maxBytesPerMember)
	if c.live < minEncoded || c.tooSmall > maxBytes {
		return nil
	}
	if e := c.encoded.Get(); e != nil && len(e.delta) <= maxBytes {
		return e
	}
	size := 0
	for i := range c.records {
		switch r := &c.records[i]; {
		case r.resource == nil:
		case r.flags&removed != 0:
			c.tooSmall = math.MaxInt
			return nil
		default:
			size += r.resource.EncodedSize(true)
		}
	}
	if size > maxBytes {
		c.tooSmall = size
		return nil
	}
	e := newEncodedChunk(c.live, size)
	for i := range c.records {
		if r := c.records[i].resource; r != nil {
			e.add(r)
		}
	}
	c.encoded.Set(o.Keeper, o.Owner, e, size)
	return e
}
