package relay

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/prefetch"
	"github.com/xds-relay/xds-relay/urn"
)

// prefetcher implements downstream.Prefetcher.
type prefetcher struct {
	*prefetch.Prefetcher
	relay *Relay
}

// shortestLease and longestLease bound the time in which a client has to request a prefetched topic. Between these
// bounds the time is cache.linger. After that the topic lingers.
const (
	shortestLease = 2 * time.Second
	longestLease  = 15 * time.Second
)

func prefetchSettings(cfg *configs.Config) prefetch.Settings {
	return prefetch.Settings{Lease: min(max(cfg.Cache.Linger, shortestLease), longestLease), Most: max(cfg.Cache.IdleEntries, 1)}
}

// prefetchClass is equal for clients to whom all prefetched names mean the same, and who may have the same of them.
type prefetchClass struct {
	generation uint64
	rights     uint64
	oldStyle   [len(prefetch.Types)]cache.Scope
	// covers and onNew are the arguments of downstream.Prefetcher.Join, as texts.
	covers, onNew string
}

// prefetchNames resolves names for the clients of a prefetchClass. It implements prefetch.Names.
type prefetchNames struct {
	router   *authority.Router
	topics   *cache.Cache
	rights   *naming.ClientRights // nil: they may have everything
	views    bool                 // the rules have to distinguish names that views match
	oldStyle [len(prefetch.Types)]cache.Scope
	covers   map[cache.Key]struct{}
	onNew    []cache.Scope
}

// Join implements downstream.Prefetcher.
func (p *prefetcher) Join(of downstream.Names, covers []cache.Key, onNew []cache.Scope) downstream.PrefetchAudience {
	c := of.(*naming.Names)
	class := prefetchClass{generation: c.Generation, onNew: fmt.Sprint(onNew)}
	for i, typeURL := range prefetch.Types {
		// A type without a rule has the scope without an authority.
		class.oldStyle[i], _ = c.Router.OldStyle(c.Client, typeURL)
	}
	var own *naming.ClientRights
	if c.ClientRights != nil {
		rights := *c.ClientRights
		own, class.rights = &rights, c.ClientRights.Class()
	}
	known := map[cache.Key]struct{}{}
	var text strings.Builder
	for _, k := range covers {
		if slices.Contains(prefetch.Types[:], k.TypeURL) {
			known[k] = struct{}{}
			fmt.Fprintf(&text, "%s %q %q\n", k.TypeURL, k.Scope, k.Name)
		}
	}
	class.covers = text.String()
	return p.Prefetcher.Join(class, func() prefetch.Names {
		return &prefetchNames{
			router: c.Router, topics: p.relay.cache, rights: own, views: own != nil && own.KnowsViews(),
			oldStyle: class.oldStyle, covers: known, onNew: slices.Clone(onNew),
		}
	})
}

// Follows implements downstream.Prefetcher.
func (*prefetcher) Follows(typeURL string) bool { return prefetch.Follows(typeURL) }

// Key implements prefetch.Names.
func (n *prefetchNames) Key(from cache.Key, typeURL, name string) (cache.Key, bool) {
	k, ok := n.meaning(typeURL, name)
	switch {
	case !ok || from.Scope.Params != "" || n.views || k.IsSet() || k.Scope.Derived != "" || n.isCovered(k):
		return k, false
	case k.Scope != from.Scope.Accepted() && !n.topics.HasScope(k.Scope):
		return k, false // it would need another stream to a control plane
	}
	return k, n.rights == nil || n.rights.May(naming.Requested{Key: k, Plain: true}) == nil
}

func (n *prefetchNames) meaning(typeURL, name string) (k cache.Key, ok bool) {
	if urn.IsXdstp(name) {
		k, err := naming.XdstpKey(n.router.Xdstp, typeURL, name)
		return k, err == nil
	}
	i := slices.Index(prefetch.Types[:], typeURL)
	if i < 0 || n.oldStyle[i].Authority == "" && !n.oldStyle[i].OldStyle {
		return k, false
	}
	return cache.Key{Scope: n.oldStyle[i], TypeURL: typeURL, Name: name}, true
}

// isCovered reports whether a wildcard or glob of the clients has a name.
func (n *prefetchNames) isCovered(k cache.Key) bool {
	if len(n.covers) == 0 {
		return false
	}
	set := k
	set.Name = cache.Wildcard
	if _, ok := n.covers[set]; ok {
		return true
	}
	if set.Name, _ = urn.GlobOf(k.Name); set.Name == "" {
		return false
	}
	_, ok := n.covers[set]
	return ok
}

// Side implements prefetch.Names.
func (n *prefetchNames) Side(k cache.Key) cache.Key {
	if slices.Contains(n.onNew, k.Scope.Accepted()) {
		if o := n.router.Rollout(k.Scope); o != nil && o.RollsOut(k.TypeURL) {
			k.Scope.New = true
		}
	}
	return k
}

func (r *Relay) prefetchInstruments() []instrument {
	stats := r.prefetcher.Stats
	return []instrument{
		{r.metrics.Gauge, "xds_relay.prefetch.ahead", "Prefetched names that no client has requested yet.",
			one(func() int { return stats().Ahead })},
		{r.metrics.Counter, "xds_relay.prefetch.begun", "Names that the relay began to prefetch.",
			one(func() uint64 { return stats().Begun })},
		{r.metrics.Counter, "xds_relay.prefetch.ended", "Prefetched names that a client then requested, or that the relay gave up because no client requested them in time.",
			func() []admin.Sample {
				s := stats()
				return byLabel("outcome", func() map[string]uint64 {
					return map[string]uint64{"requested": s.Requested, "released": s.Released}
				})()
			}},
		{r.metrics.Counter, "xds_relay.prefetch.refused", "Times that a bound kept the relay from prefetching names.",
			byLabel("bound", func() map[string]uint64 { return stats().Refused })},
	}
}
