package prefetch

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Following references.

const (
	// mostOfScope bounds the topics of one scope that are ahead of the clients.
	mostOfScope = 2000
	// mostOfResource bounds the references of one resource that are followed.
	mostOfResource = 1000
	// mostLevels bounds the references between a topic that clients want and a prefetched one. gRFC A37 allows 16
	// levels of aggregate clusters.
	mostLevels = 20
	// longestName is the maximum length of a prefetched name, in bytes.
	longestName = 4 << 10
	// perPage is how many members of a set are read at once.
	perPage = 64
)

// Follows reports whether the references of resources of a type are followed.
func Follows(typeURL string) bool {
	switch typeURL {
	case xdstype.ListenerV3, xdstype.RouteV3, xdstype.ScopedRouteV3, xdstype.VirtualHostV3, xdstype.ClusterV3:
		return true
	}
	return false
}

// Types are the types that are prefetched. Secrets are not: the relay gets a private key only when a client that may
// have it requests it. Nor are types whose names are unknown before a user's request arrives, such as VirtualHosts.
var Types = [...]string{xdstype.RouteV3, xdstype.ClusterV3, xdstype.EndpointsV3, xdstype.ExtensionConfigV3}

// target is a name in a resource.
type target struct{ typeURL, name string }

// isTarget reports whether a client that has read a reference will request the resource that it names.
func isTarget(r *graph.Reference) bool {
	if r.Source != graph.Stream || r.Many || len(r.To.Name) > longestName {
		return false
	}
	switch r.To.TypeURL {
	case xdstype.ClusterV3:
		return !r.Optional // clients mostly have optional ones from their bootstrap
	case xdstype.RouteV3, xdstype.EndpointsV3, xdstype.ExtensionConfigV3:
		return true
	}
	return false
}

// targetsOf returns the names that a resource refers to, without duplicates.
func (p *Prefetcher) targetsOf(r *cache.Resource) []target {
	if r.Redirect() != "" {
		return nil
	}
	id := contentID{r.TypeURL(), r.Hash()}
	if targets, ok := p.known.contents.get(id); ok {
		return targets
	}
	references, _ := graph.References(r.TypeURL(), r.Value()) // clients reject a resource that cannot be read
	seen := map[target]struct{}{}
	var targets []target
	for i := range references {
		t := target{references[i].To.TypeURL, references[i].To.Name}
		if _, twice := seen[t]; twice || !isTarget(&references[i]) {
			continue
		}
		if len(targets) == mostOfResource {
			p.counts.refused[overResource].Add(1)
			break
		}
		seen[t] = struct{}{}
		targets = append(targets, t)
	}
	p.known.contents.put(id, targets)
	return targets
}

// read follows the references of a node.
func (p *Prefetcher) read(n *node, now time.Time) {
	again := n.again
	n.again = false
	if n.set != nil {
		p.readSet(n, again, now)
		return
	}
	if n.entry == nil {
		return
	}
	st := n.entry.Entry().Snapshot()
	switch r := st.Resource; {
	case r == nil && again && st.Status != cache.Absent:
		// The resource will probably name the same resources as before.
		if targets, ok := p.known.names.get(n.key); ok {
			n.time = now
			p.follow(n, targets, again, now)
		}
	case r == nil:
		n.hash = 0
	case again || r.Hash() != n.hash:
		n.hash, n.time = r.Hash(), now
		targets := p.targetsOf(r)
		p.known.names.put(n.key, targets)
		p.follow(n, targets, again, now)
	}
}

// readSet follows the references of members that have changed. If again is set, it reads all members of a small set.
func (p *Prefetcher) readSet(n *node, again bool, now time.Time) {
	watch := n.set
	if again {
		n.time = now
		if watch.set.Len() <= mostOfResource {
			watch.set.Rewind(&watch.SetWatch)
		}
	}
	var page []*cache.Resource
	all := watch.set.Since(&watch.SetWatch, func(m cache.Member) bool {
		if len(page) == perPage {
			return false
		}
		if m.Resource != nil && m.News == cache.Changed {
			page = append(page, m.Resource)
		}
		return true
	})
	for _, r := range page {
		p.follow(n, p.targetsOf(r), again, now)
	}
	if !all {
		p.toRead(n)
	}
}

// follow watches the names that a node refers to. If again is set, it also follows the references of names that are
// watched already.
func (p *Prefetcher) follow(n *node, targets []target, again bool, now time.Time) {
	until := n.lease
	if n.wanted > 0 {
		until = now.Add(p.settings.Load().Lease)
	}
	if n.level == mostLevels && len(targets) > 0 {
		p.counts.refused[overLevels].Add(1)
		return
	}
	var begun []*node
	for _, t := range targets {
		k, ok := n.audience.names.Key(n.key, t.typeURL, t.name)
		if !ok {
			continue
		}
		if target := n.audience.nodes[k]; target != nil {
			p.renew(target, n, until)
			if again {
				p.readAgain(target, now)
			}
			continue
		}
		if !p.hasRoom(k.Scope) {
			continue
		}
		target := &node{audience: n.audience, key: k, level: n.level + 1}
		n.audience.nodes[k] = target
		p.setLease(target, until)
		begun = append(begun, target)
	}
	p.begin(begun)
}

// renew notes that the node from refers to another node that is watched already.
func (p *Prefetcher) renew(target, from *node, until time.Time) {
	if target.isAhead() && until.After(target.lease) {
		p.setLease(target, until)
	}
	target.level = min(target.level, from.level+1)
}

// begin watches the topics of new nodes. The source requests all of them in one request.
func (p *Prefetcher) begin(nodes []*node) {
	if len(nodes) == 0 {
		return
	}
	request := p.topics.Requests().Begin()
	for _, n := range nodes {
		if alone := p.watch(n, n.key); !alone && !Follows(n.key.TypeURL) {
			p.remove(n) // clients watch it, and it has no references to follow
			continue
		}
		p.counts.begun.Add(1)
		p.toReadAgain(n)
	}
	p.topics.Requests().End(request)
}

// hasRoom reports whether one more topic of a scope may be ahead of the clients.
func (p *Prefetcher) hasRoom(scope cache.Scope) bool {
	switch {
	case p.ahead[scope] >= mostOfScope:
		p.counts.refused[overScope].Add(1)
	case p.leases.Len() >= p.settings.Load().Most:
		p.counts.refused[overAll].Add(1)
	default:
		return true
	}
	return false
}
