package downstream

import "iter"

// streamPiece is how many streams are collected at a time, while the server is locked.
const streamPiece = 128

// streamsAfter iterates over the open streams whose ID is greater than id, oldest first. It collects them in pieces, so
// that looking at a few does not collect all. Streams that begin during the iteration are not included.
func (s *Server) streamsAfter(id uint64) iter.Seq[*stream] {
	return func(yield func(*stream) bool) {
		s.mu.Lock()
		newest := s.lastID
		s.mu.Unlock()
		var piece []*stream
		for last := (*stream)(nil); ; last = piece[len(piece)-1] {
			piece = s.streamsFrom(last, id, piece[:0])
			for _, st := range piece {
				if id = st.id; id > newest || !yield(st) {
					return
				}
			}
			if len(piece) < streamPiece {
				return
			}
		}
	}
}

// streamsFrom appends some streams after last, or after an ID if last has ended.
func (s *Server) streamsFrom(last *stream, id uint64, piece []*stream) []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var next *stream
	switch {
	case last != nil && (last.after != nil || last == s.streams.last):
		next = last.after
	case id == 0:
		next = s.streams.first
	default:
		for st := s.streams.last; st != nil && st.id > id; st = st.before {
			next = st
		}
	}
	for ; next != nil && len(piece) < streamPiece; next = next.after {
		piece = append(piece, next)
	}
	return piece
}

// streamOf returns the open stream with this ID, nil if there is none.
func (s *Server) streamOf(id uint64) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := s.streams.last; st != nil && st.id >= id; st = st.before {
		if st.id == id {
			return st
		}
	}
	return nil
}

func (l *streamList) all() []*stream {
	all := make([]*stream, 0, l.n)
	for st := l.first; st != nil; st = st.after {
		all = append(all, st)
	}
	return all
}
