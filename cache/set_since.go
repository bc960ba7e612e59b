package cache

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache/internal/members"
)

// Reading a set for a delta client: changes in their order, and whole chunks of members for a new
// subscriber.

// EncodedChunk has consecutive members in the order of their changes, encoded in the delta form
// that all clients understand. New subscribers of a set share it.
type EncodedChunk = members.EncodedChunk

// ChunkOptions say how a watcher receives many members at once. Such a watcher needs to know only that
// a member exists.
type ChunkOptions struct {
	Form Form
	// MaxBytes bounds the size of a chunk.
	MaxBytes int
	// Yield is called with each chunk, as Since calls its yield with each member.
	Yield func(*EncodedChunk) bool
}

// Since calls yield for each member that has changed since w's position, in the order of the
// changes, and then for each name with a new error or heartbeat. If yield returns false, the next
// call begins with the same member. Since returns true if w has received everything. The set is
// locked during the call: yield must be short and must not call the cache.
func (s *Set) Since(w *SetWatch, yield func(Member) bool) (all bool) {
	return s.SinceInChunks(w, nil, yield)
}

// SinceInChunks is like Since, but passes whole chunks of members to o.Yield where possible.
func (s *Set) SinceInChunks(w *SetWatch, o *ChunkOptions, yield func(Member) bool) (all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := w.seenUpTo
	if !w.inBatch {
		w.batchStart, w.batchEnd, w.inBatch = w.seq, s.seq, true
	}
	for chunk, m := range s.members.AfterInChunks(w.seq, members.Encoding{MaxBytes: s.maxChunkBytes(w, o), Keeper: s.table.scope.chunks, Owner: s}) {
		switch {
		case chunk != nil:
			if !o.Yield(chunk) {
				return false
			}
		case len(w.apart) > 0 && w.isApart(s.members.Key(m)): // see Return
		case m.Removed:
			// The watcher never received a member that came and went since its position.
			if m.Added <= known && m.Seq > max(known, w.removedUpTo) && !yield(s.memberOf(m, Removed)) {
				return false
			}
		case s.withheldAt(w, m, w.batchEnd):
		default:
			if !yield(s.memberOf(m, s.newsOf(m, w.batchStart))) {
				return false
			}
		}
		w.seq, w.seenUpTo = m.Seq, max(w.seenUpTo, m.Seq)
	}
	w.seq, w.seenUpTo = s.seq, s.seq
	for n := range s.notes.after(w.noteSeq) {
		if m, ok := s.memberOfNote(w, n, w.batchStart); ok && !yield(m) {
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

// RemovedAhead calls yield for each removed member that Since would pass to w's watcher as removed. Since then passes
// over these: the watcher has the removals before the other changes, however many calls of Since those take. The rules
// for yield of Since apply.
//
// So does RemovedAhead for members whose claims other members have taken, if the watcher applies resources one by one:
// then it is to call Return.
func (s *Set) RemovedAhead(w *SetWatch, yield func(Member)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range slices.Backward(s.removals) {
		if g.seq <= max(w.seenUpTo, w.removedUpTo) {
			break
		}
		if g.added <= w.seenUpTo && s.valid(g) && !w.isApart(g.key) {
			yield(s.memberOf(s.members.Get(g.key), Removed))
		}
	}
	w.removedUpTo = s.seq
	apart := s.toSetApart(w)
	s.setApart(w, apart)
	for _, m := range apart {
		yield(s.memberOf(m, Removed))
	}
}

// DropUnused implements recent.Owner.
func (s *Set) DropUnused() (left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.members.DropUnused()
}

func (s *Set) memberOf(m members.Member, news News) Member {
	return Member{Name: m.Resource.Name(), News: news, Resource: m.Resource, Previous: s.previous(m).resource}
}

// maxChunkBytes bounds the size of a chunk for w's watcher. It is 0 if not all watchers of the set
// receive the same.
func (s *Set) maxChunkBytes(w *SetWatch, o *ChunkOptions) int {
	switch {
	case o == nil || w.seenUpTo > w.seq || len(w.apart) > 0:
		// The watcher may know members that have been removed since.
	case o.Form&(ByLocator|Heartbeat) != 0 || o.Form&WithTTL != 0 && s.withTTL > 0:
	case s.withheld > 0 || s.redirects > 0:
	case s.renewed && w.seq > 0: // not all of it is new to the watcher
	default:
		return o.MaxBytes
	}
	return 0
}

// memberOfNote returns what a note means for w's watcher, which already had all members that have not
// changed since start. ok is false if the note has nothing new for the watcher.
func (s *Set) memberOfNote(w *SetWatch, n *note, start uint64) (news Member, ok bool) {
	news = Member{Name: n.key}
	if n.failed > w.noteSeq {
		news.Err = n.err
	}
	m := s.members.Get(n.key)
	if !m.Present() {
		return news, news.Err != nil
	}
	news.Name, news.Resource = m.Resource.Name(), m.Resource
	switch {
	case n.arrival > w.noteSeq && s.isNewArrival(w, m, n, start):
		news.News = Changed
	case m.Seq > start || s.withheldFrom(w, m):
		// The watcher has just received the whole member, or must not receive it.
	case n.ttlChange > w.noteSeq:
		news.News = TTLChanged
	case n.heartbeat > w.noteSeq:
		news.News = TTLRenewed
	}
	return news, news.News != ErrorOnly || news.Err != nil
}

// SentTo calls yield for each member that w's watcher has received and whose removal it has not,
// with the version that the watcher has. The version is empty if it is neither the current one nor
// the one before a redirect. The rules for yield of Since apply.
func (s *Set) SentTo(w *SetWatch, yield func(name, version string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members.All() {
		switch {
		case len(w.apart) > 0 && w.isApart(s.members.Key(m)):
		case m.Added > w.seenUpTo || m.Removed && m.Seq <= max(w.seenUpTo, w.removedUpTo) || !m.Removed && s.withheldAt(w, m, w.noteSeq):
			// The watcher never received it, or has received its removal.
		case m.Seq <= w.seq:
			yield(m.Resource.Name(), m.Resource.Version())
		default:
			version := ""
			if old := s.previous(m); old.resource != nil && old.seq <= w.seq {
				version = old.resource.Version()
			}
			yield(m.Resource.Name(), version)
		}
	}
}
