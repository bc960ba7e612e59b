package integration

// The resources that a chaos client holds, and what it knows about its requests.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// chaosHeld has the resources and requests of a client.
type chaosHeld struct {
	wanted   map[topic]bool
	held     map[topic]int    // revisions
	versions map[topic]string // delta
	infos    map[string]string
	nonces   map[string]string // of this stream
	answered map[string]bool   // types of which a resource or removal came on this stream
	newest   map[topic]int     // the newest that it ever had, and that no relay may have lost
	seen     map[topic][]sighting
	relay    int // the number of the relay of this stream
	// Of this stream: its number, whether the client held nothing when it began, and which poison the
	// control plane had learned to be rejected by clients of its relay.
	stream  int
	fresh   bool
	stopped map[int]bool
	// requested is what was wanted when each SotW request of this stream was sent, by type. A
	// response may answer any of them.
	requested map[string][]map[topic]bool
	// begun is what was ever requested on this stream, and by how what is held may have come.
	begun map[topic]bool
	by    map[topic]wantedBy
	// left is what was given up on this stream, until the relay is known to have read that it is requested again:
	// a response may have been sent before the relay had read either.
	left map[topic]bool
	// barriers: see chaosBarriers. It is of this stream.
	barriers chaosBarriers
}

// viewerName is the cluster of the nodes that have a view.
const viewerName = "viewer"

// chaosSets are the sets that clients may request.
func chaosSets() []topic {
	return []topic{{clusterType, wildcard}, {endpointType, chaosGlob(delta) + wildcard}, {endpointType, chaosGlob(pairName) + wildcard}}
}

// chaosBarriers know which sets the relay knows that the client has requested. Without them, a response
// may have been sent before the relay has read the request. After a client has requested a set, it
// requests a name of an authority that does not exist, of another type. Once the relay answers that, it
// has read both requests, so it has sent all later responses with knowledge of the set. This is for
// delta.
type chaosBarriers struct {
	sent, passed int
	after        map[topic]int // the barrier that followed the request of a set
}

func chaosBarrier(n int) string {
	return fmt.Sprintf("xdstp://nobody/envoy.config.route.v3.RouteConfiguration/%d", n)
}

// passes records a response to barriers.
func (b *chaosBarriers) passes(r *response) {
	for n := b.passed + 1; n <= b.sent; n++ {
		if slices.ContainsFunc(r.errors, func(e *discoveryv3.ResourceError) bool { return e.GetResourceName().GetName() == chaosBarrier(n) }) {
			b.passed = n
		}
	}
}

// known says that the relay has read the last request of a set.
func (b *chaosBarriers) known(set topic) bool {
	n, ok := b.after[set]
	return ok && b.passed >= n
}

// onTwoStreams says that the relay may get a resource on two streams of the control plane, of
// which either may be behind: clusters are in a wildcard, too. Names and globs share a stream.
func (t topic) onTwoStreams() bool { return t.typeURL == clusterType }

// sighting is a revision that a client received.
type sighting struct {
	revision int
	at       time.Time
	relay    int // the number of the relay that sent it
	// The stream on which it came, and how often clients had rejected poison then.
	stream, rejections int
}

// stored is how long a relay that is killed may have had something that it had not yet stored, on a busy machine.
const stored = 2 * time.Second

// saw records what a client receives for a resource.
func (h *chaosHeld) saw(t topic, revision, rejections int) {
	h.newest[t] = revision
	all := append(h.seen[t], sighting{revision, time.Now(), h.relay, h.stream, rejections})
	for len(all) > 1 && time.Since(all[1].at) > 2*stored {
		all = all[1:]
	}
	h.seen[t] = all
}

// forgive drops what a killed relay may have lost, so that the next relay may have something older.
func (h *chaosHeld) forgive(r *relays) {
	for t, all := range h.seen {
		for len(all) > 0 && r.diedWithin(all[len(all)-1].relay, all[len(all)-1].at, stored) {
			all = all[:len(all)-1]
		}
		h.seen[t], h.newest[t] = all, absent
		if len(all) > 0 {
			h.newest[t] = all[len(all)-1].revision
		}
	}
}

// wantedBy is how a resource is requested, and whether one of the two was given up since the resource came,
// if only for a moment.
type wantedBy struct{ name, set, gaveUp bool }

func waysTo(t topic, wanted map[topic]bool) wantedBy {
	directory := t.name[:strings.LastIndexByte(t.name, '/')+1]
	return wantedBy{name: wanted[t], set: wanted[topic{t.typeURL, directory + wildcard}]}
}

// gaveUp says that something is not requested any more in a way in which it may have come.
func (h *chaosHeld) gaveUp(t topic) bool {
	was, is := h.by[t], waysTo(t, h.wanted)
	return was.gaveUp || was.name && !is.name || was.set && !is.set
}

// came records in which ways a resource may have come: also in one that was given up before it came, and
// may be requested again when the next response comes.
func (h *chaosHeld) came(t topic) {
	h.by[t] = waysTo(t, h.begun)
	by, left := h.by[t], waysTo(t, h.left)
	by.gaveUp = h.gaveUp(t) || left.name || left.set
	h.by[t] = by
}

// giveUp records what is not requested any more in a way in which it may have come.
func (h *chaosHeld) giveUp() {
	for t, by := range h.by {
		by.gaveUp = h.gaveUp(t)
		h.by[t] = by
	}
}

// String describes what the client holds, for a failed test.
func (h *chaosHeld) String() string { return fmt.Sprintf("wanted %v, held %v", h.wanted, h.held) }
