package upstream

import "time"

// Status is a snapshot of a Stream, for operators.
type Status struct {
	// TypeURL is the stream's type, empty for an aggregated one.
	TypeURL string
	// Beside says that it is for names of types of which a wildcard is wanted, too.
	Beside bool
	// Connected says whether a stream to the control plane is open.
	Connected bool
	// Since is when that became so.
	Since time.Time
	// Protocol is what is spoken, or will be: Delta, SotW or REST. It is empty for a
	// type that cannot be asked for, of which LastError says why.
	Protocol Protocol
	// LastError is why the stream was lost last, empty if it never was.
	LastError string
	// Subscriptions is the number of names and wildcards that are wanted.
	Subscriptions int
	// Parameters is the number of different dynamic parameters among those.
	Parameters int
	// Responses is the number of responses received, and Nacks that of those which
	// were not accepted as a whole, over all streams.
	Responses, Nacks uint64
	// ResourceErrors is the number of resource_errors that came.
	ResourceErrors uint64
}

// Status returns a snapshot. It must not be called with the cache locked.
func (s *Stream) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.TypeURL, st.Protocol = s.form.typeURL, s.form.name
	params := map[string]bool{}
	for _, f := range s.feeds {
		st.Subscriptions += f.sets.wanted()
		for _, subs := range f.sets.list {
			if subs.wanted > 0 && subs.params != nil {
				params[subs.scope.Params] = true
			}
		}
	}
	st.Parameters = len(params)
	return st
}

// Statuses returns the status of the stream, and of the one for names beside a
// wildcard if that is in use. It must not be called with the cache locked.
func (s *Stream) Statuses() []Status {
	all := []Status{s.Status()}
	s.mu.Lock()
	b := s.beside.stream
	s.mu.Unlock()
	if b != nil {
		if st := b.Status(); st.inUse() {
			all = append(all, st)
		}
	}
	return all
}

func (st *Status) inUse() bool { return st.Connected || st.Subscriptions > 0 }

// setConnected takes note of the beginning or end of a stream. The caller holds
// mu.
func (s *Stream) setConnected(connected bool) {
	if s.status.Connected != connected {
		s.status.Connected, s.status.Since = connected, time.Now()
	}
}
