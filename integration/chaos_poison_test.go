package integration

// A control plane whose changes are rolled out. All clients reject some of the changes, the poison.

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

// chaosRollout stops for poison alone: clients come and go.
const chaosRollout = "{soak: 1s, steps: [50%], deaths: 1000}"

// chaosPoison records which of a control plane's revisions are poison.
type chaosPoison struct {
	mu sync.Mutex
	// refused has each poison, and the relays that have passed on that a client rejected it.
	refused  map[int]map[int]bool
	rejected int // how often clients rejected poison
	nacked   int // how many rejections the control plane was sent
	// taken is when a client first had a resource: a first answer is accepted, whatever its content.
	taken map[topic]time.Time
	// triedAgain is the newest revision of poison that a relay may try again: see mayTryAgain.
	triedAgain int
}

func newChaosPoison() *chaosPoison {
	return &chaosPoison{refused: map[int]map[int]bool{}, taken: map[topic]time.Time{}}
}

// took records that a client has a resource.
func (p *chaosPoison) took(t topic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[t].IsZero() {
		p.taken[t] = time.Now()
	}
}

// isAccepted says that a resource is not new to a relay, also to the next one.
func (p *chaosPoison) isAccepted(t topic) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.taken[t].IsZero() && time.Since(p.taken[t]) > stored
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

// isRejected reports whether the control plane has learned that clients of a relay have rejected a poison.
func (p *chaosPoison) isRejected(revision int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.refused[revision]) > 0
}

// stoppedAt returns what clients of a relay have rejected, if the control plane has learned so.
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

// mayTryAgain records that a relay may try again the poison up to a revision. The control plane restores
// its resources only step by step. A change may be back before the poison's cure, while the guard holds
// the poison: if the rejected response had what changes, the relay tries all of that again.
func (p *chaosPoison) mayTryAgain(revision int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.triedAgain = revision
}

// isTriedAgain says that a relay may try poison again.
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

// rejects returns the words in which a client of a relay rejects a response, nil if it has no poison.
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

// hears processes a request of a relay, which may contain a client's words.
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

// poisonSome changes clusters, and now and then to poison, until ctx ends. Once clients have rejected the poison,
// a cluster changes that has never changed: the rest goes to clients, and the poison must not. Nothing else changes
// while there is poison: what was new in the response that a client rejected may be why, and if it changes, all
// of that is tried again.
func (p *chaosPlane) poisonSome(ctx context.Context, r *rand.Rand) {
	const breath, lasting, most = 300 * time.Millisecond, 800 * time.Millisecond, 4
	cluster := func(i int) topic { return topic{clusterType, fmt.Sprint("cluster-", i)} }
	unchanged := chaosMore / 2 // and those after it
	for pause(ctx, r, 2*lasting) {
		for range r.IntN(most) {
			p.publish(cluster(r.IntN(chaosMore/2)), true)
			pause(ctx, r, breath)
		}
		t := cluster(r.IntN(chaosMore / 2))
		if !p.poison.isAccepted(t) {
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

// checkPoison checks a response of a control plane whose changes are rolled out.
func (c *chaosClient) checkPoison(h *chaosHeld, r *response) {
	poison := c.plane.poison
	for name, res := range r.resources {
		_, revision, _ := revisionOf(r.typeURL, []byte(res.value))
		switch {
		case !poison.is(revision):
		case h.stopped[revision] && !poison.isTriedAgain(revision):
			c.plane.truth.report(c, "was sent %s at revision %d, of which the control plane had learned before this stream that it was rejected", name, revision)
		case h.fresh && !h.answered[r.typeURL]:
			c.plane.truth.report(c, "held nothing and was sent %s first at revision %d, which nobody accepts", name, revision)
		}
	}
}

// mayGoBack records that a client may receive an older state than it had: since then it, or another one,
// has rejected something, or its stream has ended.
func (h *chaosHeld) mayGoBack(t topic, rejections int) bool {
	all := h.seen[t]
	return len(all) > 0 && (all[len(all)-1].stream != h.stream || all[len(all)-1].rejections != rejections)
}
