package integration

// A control plane whose changes the relay rolls out. Some of the changes are poison: every client rejects
// them.

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
)

// rolledName is the authority with a rollout.
const rolledName = "rolled"

// chaosRollout allows so many deaths of clients that only rejections stop the rollout: the clients of the chaos
// test disconnect all the time. On a busy machine, they take longer than ten seconds to acknowledge a change now and then: ten
// soaks are longer than that.
const chaosRollout = "{soak: 2s, steps: [50%], deaths: 1000}"

// chaosPoison records which of a control plane's revisions are poison.
type chaosPoison struct {
	mu sync.Mutex
	// refused has each poison, with the relays that have told the control plane of a rejection.
	refused  map[int]map[int]bool
	rejected int // how often clients rejected poison
	nacked   int // how many rejections the control plane received
	// accepted says when a client that held nothing first received a resource in its first answer. Such clients begin
	// with the accepted state; others may have received a resource of a change that is still being tried.
	accepted map[topic]time.Time
	// triedAgain is the newest revision of poison that a relay may send again: see mayTryAgain.
	triedAgain int
}

func newChaosPoison() *chaosPoison {
	return &chaosPoison{refused: map[int]map[int]bool{}, accepted: map[topic]time.Time{}}
}

// begins records that a client begins with a resource.
func (p *chaosPoison) begins(t topic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.accepted[t].IsZero() {
		p.accepted[t] = time.Now()
	}
}

// isAccepted reports whether the relay has accepted a state of a resource, and has had the time to store it
// for the relay after it.
func (p *chaosPoison) isAccepted(t topic) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.accepted[t].IsZero() && time.Since(p.accepted[t]) > stored
}

// add records that a revision is poison.
func (p *chaosPoison) add(revision int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused[revision] = map[int]bool{}
}

// is reports whether a revision is poison.
func (p *chaosPoison) is(revision int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused[revision] != nil
}

// isRejected reports whether the control plane knows that clients of some relay have rejected a poison.
func (p *chaosPoison) isRejected(revision int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.refused[revision]) > 0
}

// stoppedAt returns the poison of which the control plane knows that clients of this relay have rejected it.
func (p *chaosPoison) stoppedAt(relay int) map[int]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[int]bool{}
	for revision, relays := range p.refused {
		if relays[relay] {
			all[revision] = true
		}
	}
	return all
}

// mayTryAgain records that a relay may send clients the poison up to a revision once more. While the control
// plane restores its resources step by step, a change may come back before the poison's replacement, and the
// guard holds the poison. If a resource of the rejected response changes then, the relay tries all of that
// response again.
func (p *chaosPoison) mayTryAgain(revision int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.triedAgain = revision
}

// isTriedAgain reports whether a relay may send a poison once more.
func (p *chaosPoison) isTriedAgain(revision int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return revision <= p.triedAgain
}

// rejections returns how often clients have rejected poison so far.
func (p *chaosPoison) rejections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rejected
}

// rejects returns the error with which a client of a relay rejects a response, or nil if it has no poison.
func (p *chaosPoison) rejects(relay int, r *response) *rpcstatus.Status {
	for _, res := range r.resources {
		_, revision, _ := revisionOf(r.typeURL, []byte(res.value))
		if !p.is(revision) {
			continue
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.rejected++
		return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: fmt.Sprintf("poison %d of relay %d", revision, relay)}
	}
	return nil
}

var poisonWords = regexp.MustCompile(`poison (\d+) of relay (\d+)`)

// hears processes a request of a relay, which may contain a client's error message.
func (p *chaosPoison) hears(m any) {
	req, ok := m.(interface{ GetErrorDetail() *rpcstatus.Status })
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, words := range poisonWords.FindAllStringSubmatch(req.GetErrorDetail().GetMessage(), -1) {
		revision, _ := strconv.Atoi(words[1])
		relay, _ := strconv.Atoi(words[2])
		if p.refused[revision] != nil {
			p.refused[revision][relay] = true
			p.nacked++
		}
	}
}

var (
	_ interface{ GetErrorDetail() *rpcstatus.Status } = (*discoveryv3.DiscoveryRequest)(nil)
	_ interface{ GetErrorDetail() *rpcstatus.Status } = (*discoveryv3.DeltaDiscoveryRequest)(nil)
)

// poisonSome changes clusters until ctx ends, and now and then turns one into poison. Once clients have
// rejected the poison, it changes a cluster that has never changed before: that change has to reach clients,
// and the poison must not. Nothing else changes while there is poison. The relay takes everything new in a
// rejected response for a possible cause, and tries all of it again if any of it changes: so the cluster that
// changes has to be accepted before, too.
func (p *chaosPlane) poisonSome(ctx context.Context, r *rand.Rand) {
	const breath, lasting, most = 300 * time.Millisecond, 800 * time.Millisecond, 4
	cluster := func(i int) topic { return topic{clusterType, fmt.Sprint("cluster-", i)} }
	unchanged := chaosMore / 2 // this cluster and those after it have not changed yet
	for pause(ctx, r, 2*lasting) {
		for range r.IntN(most) {
			p.publish(cluster(r.IntN(chaosMore/2)), true)
			pause(ctx, r, breath)
		}
		t := cluster(r.IntN(chaosMore / 2))
		if !p.poison.isAccepted(t) || unchanged < chaosMore && !p.poison.isAccepted(cluster(unchanged)) {
			continue
		}
		p.plane.change(func() {
			res := p.truth.set(t, true)
			p.poison.add(p.truth.now(t))
			p.plane.versions = p.truth.newest
			p.plane.says[t] = res
		})
		pause(ctx, r, lasting)
		if unchanged < chaosMore && p.poison.isRejected(p.truth.now(t)) {
			p.publish(cluster(unchanged), true)
			unchanged++
			pause(ctx, r, 2*lasting)
		}
		p.publish(t, true)
	}
}

// checkPoison checks a response with resources of a control plane whose changes are rolled out.
func (c *chaosClient) checkPoison(h *chaosHeld, r *response) {
	poison := c.plane.poison
	for name, res := range r.resources {
		_, revision, _ := revisionOf(r.typeURL, []byte(res.value))
		switch {
		case !poison.is(revision):
		case h.stopped[revision] && !poison.isTriedAgain(revision):
			c.plane.truth.report(c, "received %s at revision %d, although the control plane knew before this stream that clients had rejected it", name, revision)
		case h.isFirst(r):
			c.plane.truth.report(c, "held nothing, and received as its first answer %s at revision %d, which every client rejects", name, revision)
		}
	}
}

// mayGoBack reports whether a client may receive an older state of a resource than it had. That is so if a
// client has rejected poison since then, or the stream is another one.
func (h *chaosHeld) mayGoBack(t topic, rejections int) bool {
	all := h.seen[t]
	return len(all) > 0 && (all[len(all)-1].stream != h.stream || all[len(all)-1].rejections != rejections)
}

// isFirst reports whether a response is the first answer to a client that held nothing.
func (h *chaosHeld) isFirst(r *response) bool { return h.fresh && !h.answered[r.typeURL] }
