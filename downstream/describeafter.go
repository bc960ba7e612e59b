package downstream

import "iter"

// DescribeAfter is Describe for the streams that began after the given one, so that a list of streams has pages.
func (s *Server) DescribeAfter(stream uint64) iter.Seq[ClientStatus] {
	return func(yield func(ClientStatus) bool) {
		for st := range s.streamsAfter(stream) {
			if !yield(st.describe()) {
				return
			}
		}
	}
}
