package integration

// Control planes that follow the protocol less closely than others: they do what SPIRE and java-control-plane do. And what
// control planes are requested, and by whom.

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
)

// oddLinger is the cache.linger of the odd control planes' relay. They have a relay of their own, because other parts of
// chaos need the default.
const oddLinger = time.Second

// convicted is in the error that clients of a bad name receive.
const convicted = "the control plane ends the stream when this is requested"

// oddName is the authority of the odd control plane that speaks a form.
func oddName(speaks form) form { return "odd-" + speaks }

// startOddPlane starts a control plane that ends each stream on which a bad name is requested. In delta it is forgetful,
// and in SotW it is strict: see collectionPlane.
func startOddPlane(t testing.TB, speaks form, r *rand.Rand) *chaosPlane {
	p := startChaosPlane(t, string(oddName(speaks)), speaks, 1, r)
	p.plane.change(func() { p.plane.forgetful, p.plane.strict = true, true })
	p.bad = map[string]codes.Code{"bad": codes.InvalidArgument, "worse": codes.NotFound, "worst": codes.PermissionDenied}
	return p
}

func oddConfig(odd []*chaosPlane) string {
	authorities, oldStyle := "", ""
	for _, p := range odd {
		authorities, oldStyle = authorities+p.authority(), oldStyle+p.oldStyle()
	}
	return fmt.Sprintf("%scache: {linger: %v}\nauthorities:\n%sold_style_names:\n%s", prelude, oddLinger, authorities, oldStyle)
}

// mayLack reports whether a client may lack a resource that exists and that it wants by its name only: the control plane
// may have removed it, and does not say on the same stream that it exists again.
func (p *chaosPlane) mayLack(h *chaosHeld, t topic) bool {
	return p.plane.forgetful && p.plane.speaks == delta && p.removable(t) && !waysTo(t, h.wanted).set
}

// chaosRequests has what is requested on each open stream of a control plane.
type chaosRequests struct {
	mu      sync.Mutex
	streams map[*sufferingStream]map[topic]bool
}

// begin records a stream.
func (q *chaosRequests) begin(s *sufferingStream) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.streams == nil {
		q.streams = map[*sufferingStream]map[topic]bool{}
	}
	q.streams[s] = map[topic]bool{}
}

// take records a request, and returns what is requested on the stream then: nothing if it has ended.
func (q *chaosRequests) take(s *sufferingStream, m any) (all []topic) {
	q.mu.Lock()
	defer q.mu.Unlock()
	requested := q.streams[s]
	if requested == nil {
		return nil
	}
	switch r := m.(type) {
	case *discoveryv3.DiscoveryRequest:
		maps.DeleteFunc(requested, func(t topic, _ bool) bool { return t.typeURL == r.GetTypeUrl() })
		for _, name := range r.GetResourceNames() {
			requested[topic{r.GetTypeUrl(), name}] = true
		}
	case *discoveryv3.DeltaDiscoveryRequest:
		for _, name := range r.GetResourceNamesUnsubscribe() {
			delete(requested, topic{r.GetTypeUrl(), name})
		}
		for _, name := range r.GetResourceNamesSubscribe() {
			requested[topic{r.GetTypeUrl(), name}] = true
		}
	}
	return slices.Collect(maps.Keys(requested))
}

// end forgets a stream.
func (q *chaosRequests) end(s *sufferingStream) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.streams, s)
}

// beyond returns what is requested, without being wanted.
func (q *chaosRequests) beyond(wanted map[topic]bool) (all []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, requested := range q.streams {
		for t := range requested {
			if !wanted[t] {
				all = append(all, fmt.Sprint(t))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// checkBlame checks the errors of a response: no client of an odd control plane may hear that streams end because of a
// name that is not bad.
func (c *chaosClient) checkBlame(r *response) {
	for _, e := range r.errors {
		name := e.GetResourceName().GetName()
		if _, bad := c.plane.bad[name]; !bad && len(c.plane.bad) > 0 && strings.Contains(e.GetErrorDetail().GetMessage(), convicted) {
			c.plane.truth.report(c, "hears that the control plane ends streams because of %s, which is not so: %v", name, e.GetErrorDetail())
		}
	}
}

// beyondWants returns what the control plane is requested and no client wants.
func (p *chaosPlane) beyondWants(clients []*chaosClient) (all []string) {
	wanted := map[topic]bool{}
	for _, c := range clients {
		if c.plane == p && !c.leaves {
			c.watched.read(func(h *chaosHeld) { maps.Copy(wanted, h.wanted) })
		}
	}
	for _, what := range p.requests.beyond(wanted) {
		all = append(all, fmt.Sprintf("%s is requested %s, which no client wants", p.name, what))
	}
	return all
}
