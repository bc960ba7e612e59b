package downstream

import (
	"maps"
	"sync"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// How many clients reject something now, and how many have refused names now. An operator is alerted by these numbers:
// a bad change causes one NACK for each client, and nothing after that.

// standing are the numbers of a server.
type standing struct {
	mu sync.Mutex // one of the last in the order of locks
	// rejecting is by the label of the type, refused by Refusal. A stream counts once for each of its types.
	rejecting map[string]int
	refused   [numRefusals]int
}

// typeStanding is what a stream counts for because of one type.
type typeStanding struct {
	rejects, refused bool
	refusal          Refusal // the last one
}

// replace subtracts what a stream counted for because of a type, and adds what it counts for now.
func (s *standing) replace(typeURL string, before, after typeStanding) {
	if before == after {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rejecting == nil {
		s.rejecting = map[string]int{}
	}
	if before.rejects != after.rejects {
		n := 1
		if before.rejects {
			n = -1
		}
		s.rejecting[xdstype.Label(typeURL)] += n // a type that is no longer rejected stays, with 0
	}
	if before.refused {
		s.refused[before.refusal]--
	}
	if after.refused {
		s.refused[after.refusal]++
	}
}

// rejects reports whether a stream rejects something of a type.
func (s *standing) rejects(typeURL string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rejecting[xdstype.Label(typeURL)] > 0
}

// read returns the numbers, by label. Types that have a discovery service are always there.
func (s *standing) read() (rejecting, refused map[string]int) {
	rejecting, refused = map[string]int{}, make(map[string]int, numRefusals)
	for _, t := range xdstype.All() {
		if t.V3 != nil {
			rejecting[xdstype.Label(t.V3.TypeURL)] = 0
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(rejecting, s.rejecting)
	for r, n := range s.refused {
		refused[Refusal(r).String()] = n
	}
	return rejecting, refused
}

// stand counts the stream for what a type is now, and no longer for what it was. The caller holds mu.
func (st *stream) stand(typeURL string, now typeStanding) {
	if st.closed {
		return
	}
	t := st.troubleOf(typeURL)
	st.server.stats.standing.replace(typeURL, t.standing, now)
	t.standing = now
}

// typeTrouble is what a client was refused, or has rejected, of a type.
type typeTrouble struct {
	refused  RefusedNames
	standing typeStanding // what the stream counts for in the server's numbers
}

// troubleOf returns the trouble with a type. Until it was called for any type, stands does nothing. The caller holds mu.
func (st *stream) troubleOf(typeURL string) *typeTrouble {
	t := st.trouble[typeURL]
	if t == nil {
		t = &typeTrouble{}
		if st.trouble == nil {
			st.trouble = map[string]*typeTrouble{}
		}
		st.trouble[typeURL] = t
	}
	return t
}

// stands counts the stream anew for a session, after a request or a new configuration. The caller holds mu.
func (st *stream) stands(s typeSession) {
	if st.trouble == nil {
		return
	}
	now, typeURL := s.Describe(), s.TypeURL()
	st.stand(typeURL, typeStanding{now.Rejection != nil, now.Refused > 0, st.troubleOf(typeURL).refused.Refusal})
}

// standsNoMore ends what the stream counts for. The caller holds mu.
func (st *stream) standsNoMore() {
	for typeURL, t := range st.trouble {
		st.server.stats.standing.replace(typeURL, t.standing, typeStanding{})
		t.standing = typeStanding{}
	}
}
