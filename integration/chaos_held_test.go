package integration

// The resources that a chaos client holds, and what it knows about its requests.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// chaosHeld is the state of a chaos client.
type chaosHeld struct {
	wanted   map[topic]bool
	held     map[topic]int    // revisions
	versions map[topic]string // delta
	infos    map[string]string
	nonces   map[string]string // of this stream
	answered map[string]bool   // types of which the client received a resource or removal on this stream
	newest   map[topic]int     // the newest revision that the client received and that no killed relay can have lost
	seen     map[topic][]sighting
	relay    int // the number of the relay of this stream
	// The number of this stream; whether the client held nothing when the stream began; and the poison of
	// which the control plane knew then that clients of this relay had rejected it.
	stream  int
	fresh   bool
	stopped map[int]bool
	// requested has, by type, what the client wanted at each SotW request of this stream. A response may
	// answer any of these requests.
	requested map[string][]map[topic]bool
	// begun has everything that the client ever requested on this stream. by says through which requests a
	// held resource may have come.
	begun map[topic]bool
	by    map[topic]wantedBy
	// left has the topics from which the client unsubscribed on this stream. If the client subscribes again,
	// the topic stays until the relay is certain to have read that: it may have sent a response before it
	// read either request.
	left map[topic]bool
	// barriers are those of this stream.
	barriers chaosBarriers
}

// viewerName is the cluster of the nodes that have a view.
const viewerName = "viewer"

// chaosSets are the sets that clients may request.
func chaosSets() []topic {
	sets := []topic{{clusterType, wildcard}}
	for _, authority := range []form{delta, pairName, oddName(delta)} {
		sets = append(sets, topic{endpointType, chaosGlob(authority) + wildcard})
	}
	return sets
}

// chaosBarriers tell a delta client which of its requests for sets the relay has read. Without them, the
// client could not tell whether the relay sent a response before or after it read a request. After each
// request for a set, the client requests a name in an authority that does not exist, of another type. When
// the relay answers that request, it has read both, so all later responses take the set into account.
type chaosBarriers struct {
	sent, passed int
	after        map[topic]int // the number of the barrier after the request for a set
}

func chaosBarrier(n int) string {
	return fmt.Sprintf("xdstp://nobody/envoy.config.route.v3.RouteConfiguration/%d", n)
}

// passes records which barriers a response answers.
func (b *chaosBarriers) passes(r *response) {
	for n := b.passed + 1; n <= b.sent; n++ {
		if slices.ContainsFunc(r.errors, func(e *discoveryv3.ResourceError) bool { return e.GetResourceName().GetName() == chaosBarrier(n) }) {
			b.passed = n
		}
	}
}

// known reports whether the relay is certain to have read the last request for a set.
func (b *chaosBarriers) known(set topic) bool {
	n, ok := b.after[set]
	return ok && b.passed >= n
}

// onTwoStreams reports whether the relay may receive a resource on two streams of the control plane, either
// of which may be behind the other. That is so for clusters, which are also members of the wildcard. Names
// and globs share a stream.
func (t topic) onTwoStreams() bool { return t.typeURL == clusterType }

// sighting is a revision that a client received.
type sighting struct {
	revision int
	at       time.Time
	relay    int // the number of the relay that sent it
	// The number of the stream on which the client received it, and how often clients had rejected poison by
	// then.
	stream, rejections int
}

// stored is the longest time that a relay takes to store what it has received, on a busy machine.
const stored = 2 * time.Second

// saw records the revision of a resource that the client received.
func (h *chaosHeld) saw(t topic, revision, rejections int) {
	h.newest[t] = revision
	all := append(h.seen[t], sighting{revision, time.Now(), h.relay, h.stream, rejections})
	for len(all) > 1 && time.Since(all[1].at) > 2*stored {
		all = all[1:]
	}
	h.seen[t] = all
}

// forgive forgets the revisions that a killed relay may not have stored. The next relay may serve older ones.
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

// wantedBy says whether the client requests a resource by its name, and whether in a set. gaveUp says that
// the client has ended one of these subscriptions since it received the resource, if only for a moment.
type wantedBy struct{ name, set, gaveUp bool }

func waysTo(t topic, wanted map[topic]bool) wantedBy {
	directory := t.name[:strings.LastIndexByte(t.name, '/')+1]
	return wantedBy{name: wanted[t], set: wanted[topic{t.typeURL, directory + wildcard}]}
}

// gaveUp reports whether the client has ended a subscription through which a resource may have come.
func (h *chaosHeld) gaveUp(t topic) bool {
	was, is := h.by[t], waysTo(t, h.wanted)
	return was.gaveUp || was.name && !is.name || was.set && !is.set
}

// came records through which subscriptions a resource may have come. They include a subscription that the
// client ended before the resource came, and that it may begin again before the next response.
func (h *chaosHeld) came(t topic) {
	h.by[t] = waysTo(t, h.begun)
	by, left := h.by[t], waysTo(t, h.left)
	by.gaveUp = h.gaveUp(t) || left.name || left.set
	h.by[t] = by
}

// giveUp updates wantedBy.gaveUp of all resources after an unsubscription.
func (h *chaosHeld) giveUp() {
	for t, by := range h.by {
		by.gaveUp = h.gaveUp(t)
		h.by[t] = by
	}
}

// String describes the state, for the output of a failed test.
func (h *chaosHeld) String() string { return fmt.Sprintf("wanted %v, held %v", h.wanted, h.held) }
