package downstream

import (
	"maps"
	"sync"

	"github.com/xds-relay/xds-relay/xdstype"
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
	st.server.stats.standing.replace(typeURL, st.standing[typeURL], now)
	st.mayStand()
	st.standing[typeURL] = now
}

// mayStand notes that the client has rejected something, or was refused a name. Until then, stands does nothing. The
// caller holds mu.
func (st *stream) mayStand() {
	if st.standing == nil {
		st.standing = map[string]typeStanding{}
	}
}

// stands counts the stream anew for a session, after a request or a new configuration. The caller holds mu.
func (st *stream) stands(s typeSession) {
	if st.standing == nil {
		return
	}
	now, typeURL := s.Describe(), s.TypeURL()
	st.stand(typeURL, typeStanding{now.Rejection != nil, now.Refused > 0, st.refusedNames[typeURL].Refusal})
}

// standsNoMore ends what the stream counts for. The caller holds mu.
func (st *stream) standsNoMore() {
	for typeURL, last := range st.standing {
		st.server.stats.standing.replace(typeURL, last, typeStanding{})
	}
	st.standing = nil
}
