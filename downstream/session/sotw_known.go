package session

import (
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/cache"
)

// namesVersion is the version of the origin that all names that a client holds have, as far as it is known. Names whose
// content does not change may leave that version unnoticed, so left is how many had it when it was computed.
type namesVersion struct {
	origin *cache.OriginVersion // nil if it has to be computed
	left   uint32
	moves  int // subscriptions.moves at that time
	// apart are two names that had different versions then, or one that had none.
	apart [2]*nameSub
}

// SotW is the state of one type URL on a state-of-the-world stream.
// xDS: "The xDS transport Protocol", variants "SotW" and "ADS SotW".
type SotW struct {
	subscriptions

	// All flags are in one place, because there are very many sessions.

	begun bool // a request has been taken
	// legacyWildcard: the client has never named anything, and so has the wildcard of the old rule.
	legacyWildcard bool
	// fullType: a response is the full state of the subscriptions, so what is missing in it is gone. This is so for
	// Listener and Cluster; for other types only while there is a wildcard or a glob.
	fullType bool
	// unreferenced: nothing refers to resources of the type, so removals go with the additions that came with them.
	unreferenced bool
	// withheld: there are removals to send, which have to wait for the additions of other types. xDS: "Eventual
	// consistency considerations".
	withheld bool
	// leftIn: the last full state had removed members in it. A full state without them has to follow, even if they come
	// back until then.
	leftIn   bool
	hasState bool // state is set
	answered bool // the client has answered the last response
	// waiting: a stale request came, and the following requests would be stale, too, if more were sent in between. The
	// session lets the client catch up first.
	waiting bool

	// resumed is the version_info in the client's first request, from an earlier stream.
	resumed string
	// held is the number of names under which the client holds a resource, and sum a hash over those resources: see
	// namedVersion.
	held int
	sum  uint64
	// version is the origin's version of those, if responses are not full states.
	version namesVersion

	absent []*nameSub // withheld absent names, unless responses are full states
	// heartbeatsDue are the names with nothing new but a heartbeat, which goes in a response of its own, unless
	// responses are full states.
	heartbeatsDue []*nameSub
	// state is the hash of the last full state, if hasState: there was one, and it consisted of sets alone.
	state uint64
	// content is a version of the sets in the last full state, which stands for them alone.
	content string

	last sentResponse
	// requested is a hash over the subscriptions in the last request that counted: see FastACK.
	requested uint64
	// earlier are the newest responses before last that the client has not answered.
	earlier []sentResponse
}

// noteVersion records that a client was sent a resource with that version; first: it held no other resource.
func (s *SotW) noteVersion(o *cache.OriginVersion, first bool) {
	v := &s.version
	switch {
	case first && o != nil:
		v.origin, v.left, v.moves = o, o.Left(), s.moves
	case v.origin != o:
		v.origin = nil
	}
}

// ofNames returns the version of the origin that all names that the client holds have, empty if there is no such
// version. Usually that is known without looking at the names.
func (s *SotW) ofNames() string {
	if s.named.shared != nil {
		return s.ofGroup()
	}
	if s.held == 0 || len(s.absent) > 0 || s.behind() {
		return ""
	}
	v := &s.version
	if v.origin != nil && v.left == v.origin.Left() && v.moves == s.moves {
		return v.origin.String()
	}
	v.origin = nil
	if a, b := v.apart[0], v.apart[1]; a != nil && s.holds(a) && s.holds(b) && !a.state().Origin.Same(b.state().Origin) {
		return ""
	}
	v.apart = [2]*nameSub{}
	var first *nameSub
	var origin *cache.OriginVersion
	one := true
	for sub := range s.named.all() {
		if !s.holds(sub) {
			continue
		}
		o := sub.state().Origin
		switch {
		case first == nil:
			first, origin = sub, o
			fallthrough
		default:
			if !o.Same(origin) {
				v.apart = [2]*nameSub{first, sub}
				return ""
			}
			one = one && o == origin
		}
	}
	if one {
		v.origin, v.left, v.moves = origin, origin.Left(), s.moves
	}
	return origin.String()
}

// ofGroup is ofNames for a client that shares its names with others, and was sent all of those.
func (s *SotW) ofGroup() string {
	m := s.named.shared
	held, _ := m.held()
	if held+s.held == 0 || len(s.absent) > 0 || s.behind() {
		return ""
	}
	var origin *cache.OriginVersion
	if held > 0 {
		if origin = m.group.Origin(m.sentUpTo, m.taken); origin == nil {
			return ""
		}
	}
	for sub := range s.named.own() {
		if !s.holds(sub) {
			continue
		}
		o := sub.state().Origin
		if origin == nil {
			origin = o
		}
		if !o.Same(origin) {
			return ""
		}
	}
	return origin.String()
}

// holds reports that the client was sent a name's resource.
func (s *SotW) holds(sub *nameSub) bool {
	return !sub.is(hasEnded) && sub.sent() == sentResource
}

// behind reports that the client holds an older state of some names than is known, because the newer did not fit into a
// response.
func (s *SotW) behind() bool {
	for _, sub := range s.pending {
		if s.holds(sub) {
			return true
		}
	}
	return false
}

// knowsResource records that the client was sent a resource.
func (s *SotW) knowsResource(sub *nameSub, st *cache.State) {
	s.noteVersion(st.Origin, s.held == 0)
	mark := s.mark(st.Resource)
	isNew := sub.sent() != sentResource || sub.Note != mark
	s.knows(sub, sentResource, mark)
	sub.setSentResource(st)
	if isNew {
		sub.setSentIn(s.sending())
	}
}

// knows records what the client was sent about a name.
func (s *SotW) knows(sub *nameSub, now sentState, hash uint64) {
	if sub.sent() == sentResource {
		s.held--
		s.sum -= digest(sub)
	}
	sub.setSent(now)
	sub.Note = hash
	if now == sentResource {
		s.count(sub)
	}
}

// count counts a resource that the client holds.
func (s *SotW) count(sub *nameSub) {
	s.held++
	s.sum += digest(sub)
}

func digest(sub *nameSub) uint64 { return Digest(sub.Note, sub.key()) }

// Digest returns a hash over a key and the mark of the resource that the client holds under it. The version of a SotW
// response is made of the sum of such hashes.
func Digest(mark uint64, key string) uint64 {
	h := xxhash.NewWithSeed(mark)
	_, _ = h.WriteString(key)
	return h.Sum64()
}

// removed reports that the client holds a resource that no longer exists: one that it was sent, or that it has from an
// earlier stream or from a set.
func removed(sub *nameSub, st cache.State) bool {
	held := sub.sent() == sentResource || sub.sent() == sentNothing && sub.is(mayHold)
	return held && !sub.is(hasEnded) && st.Status == cache.Absent
}

// namedVersion is the version_info for what the client holds if the origin has no common version for it: for a single
// resource that resource's version, otherwise a hash over all resources and the sets.
func (s *SotW) namedVersion(sets string) string {
	held, sum := s.named.shared.held()
	held, sum = held+s.held, sum+s.sum
	if held == 1 && sets == "" {
		for sub := range s.named.all() {
			if st := sub.state(); sub.sent() == sentResource && st.Resource != nil {
				return st.Resource.Version()
			}
		}
	}
	return strconv.FormatUint(sum^xxhash.Sum64String(sets), 16)
}

// ofNoContent is the mark of a resource that the client holds and that has to be sent again.
const ofNoContent = ^uint64(0)

// changed reports whether a resource is new to the client, or whether the client was last sent an error that is over.
func (s *SotW) changed(sub *nameSub, st *cache.State) bool {
	return sub.sent() != sentResource || sub.Note != s.mark(st.Resource) || sub.renewed(st) || sub.sentErr() != 0 && st.Err == nil
}

// perceived is a name's state as the client may see it. A client that never had the resource may take silence for the
// answer that the resource does not exist. A relay passes the silence on to its own clients, which may have it.
// xDS: "Knowing When a Requested Resource Does Not Exist".
func (s *SotW) perceived(sub *nameSub, st cache.State) cache.State {
	if st.Status != cache.Failed || !st.Err.Unanswered || s.Relay || sub.is(mayHold) || sub.sent() == sentResource {
		return st
	}
	return cache.State{Status: cache.Absent}
}

// full reports that a response is the full state of the subscriptions.
func (s *SotW) full() bool { return s.hasSets() || s.fullType }
