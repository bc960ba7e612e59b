package session

import (
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/cache"
)

// namesVersion is the version of the origin that all names have which a client holds, as far
// as it is known: names whose content does not change may leave it unnoticed, so left is how
// many had when it was found out.
type namesVersion struct {
	origin *cache.OriginVersion // nil if it is to be found out
	left   uint32
	moves  int // subscriptions.moves, as of then
	// apart are two names that had different versions then, or one that had none.
	apart [2]*nameSub
}

// SotW is the state of one type URL on a state-of-the-world stream.
// xDS: "The xDS transport Protocol", variants "SotW" and "ADS SotW".
type SotW struct {
	subscriptions

	// All that is true or false is in one place, as there are very many sessions.

	begun bool // a request has been taken
	// legacyWildcard: the client has never named anything, and so has the
	// wildcard of the old rule.
	legacyWildcard bool
	// fullType: a response is the full state of what is subscribed to, so that
	// what is missing in it is gone. So it is for Listener and Cluster; for the
	// other types only while there is a wildcard or a glob.
	fullType bool
	// once: there is one request, and one response.
	once bool
	// withheld: removals are yet to be sent, which have to wait for
	// what other types have to say. xDS: "Eventual consistency considerations".
	withheld bool
	// leftIn: the last full state had members in it that were removed. One
	// without them has to follow, whatever becomes of them until then.
	leftIn   bool
	stated   bool // state is set
	answered bool // the client has answered last
	// waiting: a request came that was stale, and its successors would be if
	// more were sent in between. The client is let catch up first.
	waiting bool

	// resumed is the version_info with which the client came, from an earlier
	// stream.
	resumed string
	// held is the number of names under which the client holds a resource, and
	// sum a hash over those resources: see namedVersion.
	held int
	sum  uint64
	// version is the origin's of those, where responses are not full states.
	version namesVersion

	absent []*nameSub // withheld, unless responses are full states
	// heartbeatsDue are those of which there is nothing new but a heartbeat, which goes
	// in a response of its own, unless responses are full states.
	heartbeatsDue []*nameSub
	// state is the hash of the last full state, if stated: if there was one, and
	// it was of the sets alone.
	state uint64
	// content is a version of the sets in it which stands for them alone.
	content string

	last sentResponse
	// requested is a hash over what the last request that counted subscribed to: see FastACK.
	requested uint64
	// earlier are those before last that the client has not answered, the newest.
	earlier []sentResponse
}

// noteVersion notes that a client was sent a resource of that version; first, that it held no other.
func (s *SotW) noteVersion(o *cache.OriginVersion, first bool) {
	v := &s.version
	switch {
	case first && o != nil:
		v.origin, v.left, v.moves = o, o.Left(), s.moves
	case v.origin != o:
		v.origin = nil
	}
}

// ofNames is the version of the origin that all names have which the client holds, empty if
// they have not one. Mostly that is known without a look at them.
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

// ofGroup is ofNames of a client that shares its names with others, and was sent everything
// of those.
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

// holds says that the client was sent a name's resource.
func (s *SotW) holds(sub *nameSub) bool {
	return !sub.is(hasEnded) && sub.sent() == sentResource
}

// behind says that there are names of which the client holds something older than what is
// known: what did not fit into a response.
func (s *SotW) behind() bool {
	for _, sub := range s.pending {
		if s.holds(sub) {
			return true
		}
	}
	return false
}

// knowsResource notes that the client was sent a resource.
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

// knows notes what the client was sent of a name.
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

// Digest returns a hash over a key and the mark of the resource that the client holds under it. The
// version of a SotW response is made of the sum of such hashes.
func Digest(mark uint64, key string) uint64 {
	h := xxhash.NewWithSeed(mark)
	_, _ = h.WriteString(key)
	return h.Sum64()
}

// removed says that the client holds a resource that does not exist any more.
func removed(sub *nameSub, st cache.State) bool {
	return !sub.is(hasEnded) && sub.sent() == sentResource && st.Status == cache.Absent
}

// namedVersion is the version_info of what the client holds if the origin has none for all
// of it: of a single resource that resource's, else a hash over all of them and the sets.
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

// ofNoContent is the hash of a resource that the client holds and is to be sent again.
const ofNoContent = ^uint64(0)

// changed says whether a resource is new to the client, or what it was sent last
// was an error that is over.
func (s *SotW) changed(sub *nameSub, st *cache.State) bool {
	return sub.sent() != sentResource || sub.Note != s.mark(st.Resource) || sub.sentErr() != 0 && st.Err == nil
}

// perceived is what a name's state is to a client that may take silence for an answer:
// one that never had the resource. A relay passes the silence on to its own clients, who
// may have it.
// xDS: "Knowing When a Requested Resource Does Not Exist".
func (s *SotW) perceived(sub *nameSub, st cache.State) cache.State {
	if st.Status != cache.Failed || !st.Err.Unanswered || s.Relay || sub.is(mayHold) || sub.sent() == sentResource {
		return st
	}
	return cache.State{Status: cache.Absent}
}

// full says that a response is the full state of what is subscribed to.
func (s *SotW) full() bool { return s.hasSets() || s.fullType }
