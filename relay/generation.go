package relay

import (
	"io/fs"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/partition"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

// generation is everything that follows from one configuration. It does not change, so code that loads it once sees a
// consistent state. A reload replaces it. The new generation shares the origins whose configuration has not
// changed, with their connections and streams.
type generation struct {
	cfg    *configs.Config
	router *authority.Router
	rights *naming.Rights
	node   *corev3.Node     // the relay's own, for xdstp names
	store  *sharedStore     // nil if nothing is stored
	types  *descriptors.Set // nil if the configuration names none
	// origins, counts and rollouts are keyed by the authority's name in the configuration.
	origins  map[string]*origin
	counts   map[string]*counts
	rollouts map[string]*gate.Options
	guards   guarding
	number   uint64 // how many generations there were before
	settings *operator.Settings
}

// counts are the counters of an authority. They outlive its origins.
type counts struct {
	// errors counts the entries of resource_errors, and switches how often another server became active.
	errors, switches *atomic.Uint64
	// loadReports counts the load reports that were sent.
	loadReports *atomic.Uint64
	guard       *guard.Stats
	// tally has the resources that clients would reject.
	tally *taster.Tally
	check configs.Check
	// home is the address of the first server that the authority has had, and homeHeard whether it has sent resources:
	// then clients may have its versions.
	home      string
	homeHeard *atomic.Bool
}

// parts are the inputs of a generation.
type parts struct {
	cfg    *configs.Config
	before *generation // nil at the start
	files  fs.FS
	store  *sharedStore
	types  *descriptors.Set
}

// newGeneration makes the generation of a configuration. It does not connect. Its origins are in use until release.
func (s *origins) newGeneration(p parts) (*generation, error) {
	var before *authority.Router
	if p.before != nil {
		before = p.before.router
	}
	g := &generation{
		cfg: p.cfg, router: authority.After(before, p.cfg), node: partition.RelayNode(p.cfg), store: p.store, types: p.types,
		origins: map[string]*origin{}, counts: map[string]*counts{}, rollouts: map[string]*gate.Options{},
	}
	if p.before != nil {
		g.number = p.before.number + 1
	}
	g.rights = naming.NewRights(p.cfg, g.router)
	for i := range p.cfg.Authorities {
		a := &p.cfg.Authorities[i]
		g.counts[a.Name] = s.countsOf(a, p.before)
		if a.Rollout != nil {
			g.rollouts[a.Name] = g.gateOptions(a, p.before)
		}
	}
	g.guards = newGuarding(g)
	for i := range p.cfg.Authorities {
		a := &p.cfg.Authorities[i]
		o, err := s.originOf(i, g, &p)
		if err != nil {
			s.release(g)
			return nil, err
		}
		g.origins[a.Name] = o
	}
	g.settings = settingsOf(g)
	return g, nil
}

// countsOf returns the counters of an authority: those of the generation before, if that had the authority.
func (s *origins) countsOf(a *configs.Authority, before *generation) *counts {
	c := &counts{errors: new(atomic.Uint64), switches: new(atomic.Uint64), loadReports: new(atomic.Uint64), guard: new(guard.Stats), check: a.Check, homeHeard: new(atomic.Bool)}
	if before != nil && before.counts[a.Name] != nil {
		was := *before.counts[a.Name]
		c = &was
	}
	if c.home == "" && len(a.Servers) > 0 {
		c.home = a.Servers[0].Address
	}
	if c.tally != nil && c.check == a.Check {
		return c
	}
	c.check = a.Check
	c.tally = taster.NewTally(CheckMode(a.Check), s.log.With("authority", a.Name))
	return c
}

// gateOptions returns the options of an authority's rollouts: those of the generation before if they have not
// changed.
func (g *generation) gateOptions(a *configs.Authority, before *generation) *gate.Options {
	if before != nil {
		for i := range before.cfg.Authorities {
			if was := &before.cfg.Authorities[i]; was.Name == a.Name && was.Rollout != nil && configs.Fingerprint(was.Rollout) == configs.Fingerprint(a.Rollout) {
				return before.rollouts[a.Name]
			}
		}
	}
	return gateOptions(a.Rollout)
}
