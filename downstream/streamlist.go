package downstream

// streamList has streams in the order in which they came. The zero value is ready. Each step takes
// the same time however many there are.
type streamList struct {
	first, last *stream
	n           int
}

func (l *streamList) add(st *stream) {
	st.before = l.last
	if l.last == nil {
		l.first = st
	} else {
		l.last.after = st
	}
	l.last = st
	l.n++
}

func (l *streamList) remove(st *stream) {
	if st.before == nil {
		l.first = st.after
	} else {
		st.before.after = st.after
	}
	if st.after == nil {
		l.last = st.before
	} else {
		st.after.before = st.before
	}
	st.before, st.after = nil, nil
	l.n--
}

// streamsAfter returns the open streams whose ID is greater than that, in the order in which they came.
func (s *Server) streamsAfter(id uint64) []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, first := 0, (*stream)(nil)
	for st := s.streams.last; st != nil && st.id > id; st = st.before {
		n, first = n+1, st
	}
	after := make([]*stream, 0, n)
	for st := first; st != nil; st = st.after {
		after = append(after, st)
	}
	return after
}

// streamOf returns the open stream with an ID, nil if there is none.
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
