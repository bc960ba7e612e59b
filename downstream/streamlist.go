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

func (l *streamList) all() []*stream {
	all := make([]*stream, 0, l.n)
	for st := l.first; st != nil; st = st.after {
		all = append(all, st)
	}
	return all
}
