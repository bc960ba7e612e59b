package downstream

import "iter"

// DescribeAfter is Describe for the streams that came after one, so that a list of them has pages.
func (s *Server) DescribeAfter(stream uint64) iter.Seq[ClientStatus] {
	return func(yield func(ClientStatus) bool) {
		s.mu.Lock()
		streams := s.streams.all()
		s.mu.Unlock()
		for _, st := range streams {
			if st.id > stream && !yield(st.describe()) {
				return
			}
		}
	}
}
