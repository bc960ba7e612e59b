package relay

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/urn"
)

// The guards of all authorities share their settings and counters.

type guards struct {
	newest func() *generation
	log    *slog.Logger
	lines  loglines.Shared
	none   guard.Stats // of scopes without an authority
}

// guarding are the guard options of each authority of a generation.
type guarding struct {
	options map[string]*guard.Options // by the authority's name in the configuration; nil without a guard
	// views are the authorities that guard views, by the scopes of the views' topics. collections are the authorities
	// of each view's collections.
	views       map[string]*configs.Authority
	collections map[string][]string
}

func newGuarding(of *generation) guarding {
	g := guarding{options: map[string]*guard.Options{}, views: map[string]*configs.Authority{}, collections: map[string][]string{}}
	cfg, router := of.cfg, of.router
	for i := range cfg.Authorities {
		a := &cfg.Authorities[i]
		if c := &a.Guard; !c.Off() {
			g.options[a.Name] = &guard.Options{Ratio: float64(c.Ratio), Least: c.Least, Always: c.When == configs.GuardAlways, Hold: c.Hold}
		}
	}
	for i, v := range cfg.Views {
		for _, c := range v.Collections {
			u, _ := urn.ParseURL(c) // the configuration was checked
			of, name := router.ViewScope(i), u.Key().Authority
			g.collections[of] = append(g.collections[of], name)
			if a, ok := router.Source(cache.Scope{Authority: name}); ok && (g.views[of] == nil || g.views[of].Guard.Off()) {
				g.views[of] = a
			}
		}
	}
	return g
}

// guardOf returns the authority whose guard a scope has. For a view, that is the first authority of its collections
// that has a guard.
func (g *generation) guardOf(scope cache.Scope) *configs.Authority {
	if a, ok := g.guards.views[scope.Derived]; ok {
		return a
	}
	a, _ := g.router.Source(scope)
	return a
}

// settings returns the settings of a guard whose sources can always be reached.
func (g *guards) settings() guard.Settings {
	return guard.Settings{
		Options: func(scope cache.Scope) *guard.Options {
			of := g.newest()
			if a := of.guardOf(scope); a != nil {
				return of.guards.options[a.Name]
			}
			return nil
		},
		Stats: func(scope cache.Scope) *guard.Stats {
			of := g.newest()
			if a := of.guardOf(scope); a != nil {
				return of.counts[a.Name].guard
			}
			return &g.none
		},
		Log: g.log, Lines: &g.lines,
	}
}

// derivedWaits is guard.Settings.Waits for derived topics. It waits for the servers of the topic's authority; for a
// view, for those of all its collections.
func (s *origins) derivedWaits(set cache.Key, since, late time.Time) (until time.Time) {
	authorities := s.newest.Load().guards.collections[set.Scope.Derived]
	if authorities == nil {
		authorities = []string{set.Scope.Authority}
	}
	for _, name := range authorities {
		leaf := set
		leaf.Scope.Derived = ""
		if name != set.Scope.Authority {
			leaf.Scope = cache.Scope{Authority: name, Params: set.Scope.Params}
		}
		s.mu.Lock()
		of := s.streams[leaf.Scope]
		s.mu.Unlock()
		if of == nil {
			continue
		}
		for _, suffix := range []string{"", "Collection"} {
			leaf.TypeURL = set.TypeURL + suffix
			if at := of.Waits(leaf, since, late); at.After(until) {
				until = at
			}
		}
	}
	return until
}

// held returns the sets that have held members, by authority.
func (r *Relay) held() map[string][]guard.Held {
	r.origins.mu.Lock()
	all := []*feed.Feed{r.derived.feed}
	for _, of := range r.origins.streams {
		all = append(all, of.Feed)
	}
	r.origins.mu.Unlock()
	now := r.now()
	for _, o := range now.origins {
		if o.directory != nil {
			all = append(all, o.directory.feed)
		}
	}
	by := map[string][]guard.Held{}
	for _, f := range all {
		for _, held := range f.Held() {
			if a := now.guardOf(held.Key.Scope); a != nil {
				by[a.Name] = append(by[a.Name], held)
			}
		}
	}
	return by
}

// guardInstruments returns the metrics of the guards.
func (r *Relay) guardInstruments() []instrument {
	samples := func(read func(*guard.Stats) int64) func() []admin.Sample {
		return func() []admin.Sample {
			var samples []admin.Sample
			for name, c := range r.now().counts {
				samples = append(samples, admin.Sample{
					Value: read(c.guard), Labels: []attribute.KeyValue{authorityLabel(name)},
				})
			}
			return samples
		}
	}
	return []instrument{
		{r.metrics.Gauge, "xds_relay.guard.held_members", "Members and names that the guard keeps although the authority no longer has them, or parts of their content.",
			samples(func(s *guard.Stats) int64 { return s.Held.Load() })},
		{r.metrics.Counter, "xds_relay.guard.holds", "Members and names that the guard began to keep.",
			samples(func(s *guard.Stats) int64 { return int64(s.Holds.Load()) })},
		{r.metrics.Counter, "xds_relay.guard.restored", "Members and names that the guard kept until the authority sent them again.",
			samples(func(s *guard.Stats) int64 { return int64(s.Restored.Load()) })},
		{r.metrics.Counter, "xds_relay.guard.released", "Members and names that the guard kept and then removed or changed, because the authority did not send them again, or another member has taken their place.",
			samples(func(s *guard.Stats) int64 { return int64(s.Released.Load()) })},
	}
}
