package cache

import (
	"math"
	"strings"
	"weak"

	"google.golang.org/grpc/mem"
)

// What newcomers to a set with many members are told: a chunk of them at a time, in one
// buffer that all newcomers share.

// EncodedChunk has members that follow each other in the order of their changes, encoded in
// the delta form that all clients understand.
type EncodedChunk struct {
	Resources []*Resource
	// Names are the first few of the resources' names, for who keeps them longer.
	Names []string
	delta mem.SliceBuffer
}

// Delta is a DeltaDiscoveryResponse with nothing but the resources.
func (r *EncodedChunk) Delta() mem.Buffer { return &r.delta } // who has it keeps the run

// A run is made of not fewer members than leastRun, and not of more bytes for each than
// mostEach: to copy large resources is no gain.
const (
	minChunkMembers   = 2
	maxBytesPerMember = 4 << 10
	namesPerChunk     = 16
)

// ChunkOptions say how a watcher receives many members at once. To such a watcher no member
// means anything but that it exists.
type ChunkOptions struct {
	Form Form
	// MaxBytes bounds the size of a chunk.
	MaxBytes int
	// Yield is called with the runs, as the function that Since is given is with what
	// is not in a run.
	Yield func(*EncodedChunk) bool
}

// SinceInChunks is Since, but yields whole chunks of members where possible.
func (s *Set) SinceInChunks(w *SetWatch, runs *ChunkOptions, yield func(Member) bool) (all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := w.seenUpTo
	if !w.inBatch {
		w.batchStart, w.batchEnd, w.inBatch = w.seq, s.seq, true
	}
	most := s.chunkLimit(w, runs)
	for c, i := s.members.start(w.seq); c != nil; c, i = c.next, 0 {
		if i == 0 && most > 0 {
			if run := c.encode(most); run != nil {
				if !runs.Yield(run) {
					return false
				}
				w.seq, w.seenUpTo = c.end(), c.end()
				continue
			}
		}
		for ; i < len(c.records); i++ {
			if c.records[i].resource == nil {
				continue
			}
			m := s.members.read(c, i)
			news := Changed
			if m.removed {
				news = Removed
			}
			switch {
			case news == Changed && s.withheldAt(w, m, w.batchEnd):
			case news == Removed && (m.added > told || m.seq <= told):
				// One that came and went since was never known.
			case !yield(Member{Name: m.resource.Name(), News: news, Resource: m.resource, Previous: s.previous(m).resource}):
				return false
			}
			w.seq, w.seenUpTo = m.seq, max(w.seenUpTo, m.seq)
		}
	}
	w.seq, w.seenUpTo = s.seq, s.seq
	for n := range s.notes.after(w.noteSeq) {
		if t, ok := s.memberOfNote(w, n, w.batchStart); ok && !yield(t) {
			return false
		}
		w.noteSeq = n.seq
	}
	w.noteSeq, w.inBatch = s.seq, false
	if w.began > 0 && !s.withholds(w) {
		w.began = 0
	}
	return true
}

// mostOf returns how many bytes the runs may have that w's watcher is told: none if the
// set has something that is not the same for all.
func (s *Set) chunkLimit(w *SetWatch, r *ChunkOptions) (most int) {
	switch {
	case r == nil || w.seenUpTo > w.seq:
		// It may know members that are removed since.
	case r.Form&(ByLocator|Heartbeat) != 0 || r.Form&WithTTL != 0 && s.withTTL > 0:
	case s.withheld > 0 || s.redirects > 0:
	default:
		return r.MaxBytes
	}
	return 0
}

// run returns a chunk as a run, nil if it is not to be told as one. It is made when it is
// needed, and is there for as long as somebody is being told and some time longer, until
// the garbage collector comes: sets are not held twice for newcomers who do not come.
func (c *chunk) encode(most int) *EncodedChunk {
	most = min(most, c.live*maxBytesPerMember)
	if c.live < minChunkMembers || c.tooSmall > most {
		return nil
	}
	if r := c.encoded.Value(); r != nil && len(r.delta) <= most {
		return r
	}
	size := 0
	for i := range c.records {
		switch r := &c.records[i]; {
		case r.resource == nil:
		case r.flags&removed != 0:
			c.tooSmall = math.MaxInt
			return nil
		default:
			size += len(r.resource.delta)
		}
	}
	if size > most {
		c.tooSmall = size
		return nil
	}
	run := &EncodedChunk{Resources: make([]*Resource, 0, c.live), delta: make([]byte, 0, size)}
	for i := range c.records {
		if r := c.records[i].resource; r != nil {
			run.Resources = append(run.Resources, r)
			run.delta = append(run.delta, r.delta...)
		}
	}
	for _, r := range run.Resources[:min(namesPerChunk, len(run.Resources))] {
		run.Names = append(run.Names, strings.Clone(r.Name()))
	}
	c.encoded = weak.Make(run)
	return run
}

// end is a position behind all members of the chunk, and before those of the next.
func (c *chunk) end() uint64 { return c.base + uint64(c.records[len(c.records)-1].seq) }

// changed says that the chunk is another than it was.
func (c *chunk) changed() { c.encoded, c.tooSmall = weak.Pointer[EncodedChunk]{}, 0 }
