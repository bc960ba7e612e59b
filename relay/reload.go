package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/process"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/store"
)

// A reload has two parts. The first one, which may fail, opens and reads everything that is new in the configuration:
// sockets, certificates, connections, the store. It does not affect anything that runs. The second one, which cannot
// fail, replaces the generation. Reloads run one at a time.

// planned is a configuration that is ready to be committed.
type planned struct {
	generation *generation
	listeners  []*listenerPlan
	operator   *adminListener
	fleet      *membership
}

// reloads has the results of reloads.
type reloads struct {
	mu       sync.Mutex
	loaded   time.Time // the last success, or the start
	failures uint64
	problem  string // of the last reload; empty if it succeeded
	changed  string // what the last successful one has changed
	// same bounds the lines about reloads that change nothing, of which an operator's program may want any number.
	same loglines.Shared
}

// Reload replaces the running configuration. If it returns an error, nothing has changed, and the error has all
// mistakes. Clients' streams stay open, except those of listeners that are gone.
func (r *Relay) Reload(ctx context.Context, cfg *configs.Config) error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	defer r.notifyReload()()
	return r.reload(ctx, cfg, "Reload")
}

// notifyReload notifies systemd that a reload begins. The function that it returns notifies systemd of the end.
func (r *Relay) notifyReload() (end func()) {
	if !r.readiness.isDone() || r.ended {
		return func() {} // systemd waits for the first READY, or for the end
	}
	r.notify(process.NotifyReloading, process.MonotonicTime())
	return func() { r.notify(process.NotifyReady) }
}

// reload is Reload. The caller holds reloading. by is the requester of the reload, for the log.
func (r *Relay) reload(ctx context.Context, cfg *configs.Config, by string) error {
	if r.ended {
		return operator.ErrShuttingDown
	}
	p, err := r.plan(ctx, cfg)
	if err != nil {
		r.noteFailure(err, by)
		return err
	}
	before := r.now()
	changed := r.difference(before, p)
	r.settleFleet(ctx, cfg, p.fleet)
	r.commit(p)
	r.reloads.mu.Lock()
	r.reloads.loaded, r.reloads.problem, r.reloads.changed = time.Now(), "", changed
	r.reloads.mu.Unlock()
	if by == operator.ByOperator { // an audit line says it
		return nil
	}
	if log, ok := r.lineOfReload(&r.reloads.same, cfg.Hash() == before.cfg.Hash()); ok {
		log.Info("the configuration was reloaded", "by", by, "config", cfg.Hash(), "before", before.cfg.Hash(), "changes", changed, "event", "reload")
	}
	return nil
}

// lineOfReload returns the logger for a line about a reload. If the reload has changed nothing, the lines are bounded.
func (r *Relay) lineOfReload(lines *loglines.Shared, same bool) (*slog.Logger, bool) {
	if !same {
		return r.log, true
	}
	return lines.Next(r.log)
}

// noteFailure notes that a configuration could not be loaded. The running one stays.
func (r *Relay) noteFailure(err error, by string) {
	r.reloads.mu.Lock()
	again := r.reloads.problem == err.Error()
	r.reloads.failures++
	r.reloads.problem = err.Error()
	r.reloads.mu.Unlock()
	if again && by == ByWatch {
		return // Follow retries often
	}
	log, ok := r.lineOfReload(&r.reloads.same, again)
	if !ok {
		return
	}
	log = log.With("by", by, "config", r.Hash())
	var each configs.Errors
	if !errors.As(err, &each) {
		log.Error("the configuration was not reloaded, the old one goes on", "error", err, "event", "reload")
		return
	}
	for _, e := range each {
		log.Error("the configuration was not reloaded, the old one goes on", "file", e.File, "line", e.Line, "key", e.Path, "error", e.Err, "event", "reload")
	}
}

// Hash returns the hash of the running configuration.
func (r *Relay) Hash() string { return r.now().cfg.Hash() }

// plan opens and reads what a configuration needs.
func (r *Relay) plan(ctx context.Context, cfg *configs.Config) (_ *planned, err error) {
	var errs configs.Errors
	add := func(err error) {
		var list configs.Errors
		var one configs.Error
		switch {
		case errors.As(err, &list):
			errs = append(errs, list...)
		case errors.As(err, &one):
			errs = append(errs, one)
		case err != nil:
			errs = append(errs, cfg.Errorf("", "%w", err))
		}
	}
	if r.files == nil {
		add(cfg.CheckFiles())
	}
	if len(errs) > 0 { // files that could not be read are errors
		return nil, errs.OrNil()
	}
	p := &planned{}
	before := r.origins.newest.Load()
	types, err := loadTypes(cfg, before)
	if err != nil {
		return nil, err
	}
	descriptors.Use(types) // the origins read resources
	opened, key, err := r.planStore(cfg, before)
	add(err)
	if err == nil {
		p.generation, err = r.origins.newGeneration(parts{cfg: cfg, before: before, files: r.files, store: opened, types: types})
		add(err)
	}
	var wrong configs.Errors
	from := r.leavingSockets(cfg)
	p.listeners, wrong = r.planListeners(ctx, cfg, from)
	errs = append(errs, wrong...)
	operator, problem := r.planOperator(ctx, cfg, from)
	if p.operator = operator; problem != nil {
		errs = append(errs, *problem)
	}
	if len(errs) == 0 {
		p.fleet = r.planFleet(cfg, peersAddress(p.listeners))
	}
	if len(errs) == 0 { // the last step: it is not undone
		add(r.rekey(cfg, opened, key))
	}
	if len(errs) == 0 {
		return p, nil
	}
	r.undo(p)
	return nil, configs.InOrder(errs)
}

// loadTypes returns the message types of a configuration's descriptor sets: those of the generation before, if the files
// have not changed.
func loadTypes(cfg *configs.Config, before *generation) (*descriptors.Set, error) {
	types, err := descriptors.Load(cfg.Descriptors...)
	if err != nil {
		return nil, configs.Errors{cfg.Errorf("descriptors", "%w", err)}
	}
	if before != nil && before.types.Fingerprint() == types.Fingerprint() {
		return before.types, nil
	}
	return types, nil
}

// planStore returns the store of a configuration, in use once more: the present store, or another one. key is the key
// that the store is to have.
func (r *Relay) planStore(cfg *configs.Config, before *generation) (_ *sharedStore, key *store.Key, _ error) {
	if cfg.Store.Path != "" && cfg.Store.KeyFile != "" {
		var err error
		if key, err = store.ReadKey(cfg.Store.KeyFile); err != nil {
			return nil, nil, cfg.Errorf("store.key_file", "%w", err)
		}
	}
	if before != nil && before.store != nil && before.store.path == cfg.Store.Path {
		return before.store.use(), key, nil
	}
	// A store that an earlier reload removed stays open until all sources that use it have ended.
	if was := r.stores[cfg.Store.Path]; was != nil && was.useAgain() {
		return was, key, nil
	}
	s, err := openStore(cfg.Store, r.cache, r.origins.storedTopics(r.cache), r.log)
	if err != nil {
		return nil, nil, cfg.Errorf("store", "%w", err)
	}
	r.noteStore(s)
	return s, key, nil
}

// rekey changes the key of an open store if the configuration has another key, also if it is in the same file.
func (r *Relay) rekey(cfg *configs.Config, opened *sharedStore, key *store.Key) error {
	if opened == nil || opened.HasKey(key) {
		return nil
	}
	began := time.Now()
	if err := opened.Rekey(key, int64(cfg.Store.MaxBytes)); err != nil {
		return cfg.Errorf("store.key_file", "%s keeps its old key: %w", cfg.Store.Path, err)
	}
	r.log.Info("the store has another key", "store", cfg.Store.Path, "encrypted", key != nil, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// noteStore notes the store at a path, for a reload that configures it again. The caller holds reloading, or makes
// the relay.
func (r *Relay) noteStore(s *sharedStore) {
	maps.DeleteFunc(r.stores, func(_ string, of *sharedStore) bool { return of.uses.Load() == 0 })
	if s != nil {
		r.stores[s.path] = s
	}
}

// undo closes everything that plan opened.
func (r *Relay) undo(p *planned) {
	undoListeners(p.listeners)
	r.undoOperator(p.operator)
	r.undoFleet(p.fleet)
	if p.generation != nil {
		r.origins.release(p.generation)
	}
	if now := r.origins.newest.Load(); now != nil {
		descriptors.Use(now.types)
		r.endUnusedIssuers(now.cfg)
	}
}

// commit replaces the generation by the planned one.
func (r *Relay) commit(p *planned) {
	g := p.generation
	cfg := g.cfg
	before := r.origins.newest.Swap(g)
	r.configure(g)
	gone := r.commitListeners(p.listeners)
	r.closeGone(gone, p)
	r.endUnusedIssuers(cfg)
	if before != nil {
		r.readiness.configure(cfg)
		r.derived.Reload(viewsOf(g), derivedPrint(before) != derivedPrint(g))
		r.scopes.mute(r.origins.fingerprint)
		r.server.Reconfigure(func(c downstream.Client) downstream.Names { return r.namesOf(g, c) })
		r.scopes.replaceOutdated(r.origins.fingerprint, r.cache.EachTopic)
		r.loads.reconfigure()
		r.origins.release(before)
	}
	r.commitFleet(cfg, p.fleet)
	for _, l := range gone {
		r.log.Info("a listener is gone, its streams end", "address", l.address, "event", "relay")
		r.ending.Go(func() { l.drain(r.endings, cfg.Drain.Time) })
	}
}

// configure applies the settings of a generation to everything that outlives generations.
func (r *Relay) configure(g *generation) {
	cfg := g.cfg
	r.cache.Configure(cacheOptions(cfg))
	r.prefetcher.Configure(prefetchSettings(cfg))
	r.origins.configureStore(g)
	r.origins.chains.Configure(cfg.Node.ID, cfg.Cache.Linger)
	r.server.SetRelayID(cfg.Node.ID)
	for name := range g.rollouts {
		r.rollouts.Count(name)
	}
	r.rollouts.Configure()
}

// derivedPrint is equal for configurations that derive the same from the same topics, apart from views.
func derivedPrint(g *generation) string {
	type part struct {
		Name     string
		Params   *configs.ContextParameters
		Failover configs.Failover
		Peers    any
		Folder   string
	}
	var parts []part
	for _, a := range g.cfg.Authorities {
		var peers []string
		for i := range a.Servers {
			peers = append(peers, fmt.Sprintf("%+v", peerOf(&a.Servers[i])))
		}
		parts = append(parts, part{a.Name, a.ContextParameters, a.Failover, peers, a.Directory})
	}
	return configs.Fingerprint(parts)
}

func cacheOptions(cfg *configs.Config) cache.Options {
	return cache.Options{
		Linger: cfg.Cache.Linger, IdleEntries: cfg.Cache.IdleEntries, IdleScopes: cfg.Cache.IdleScopes,
		Tombstones: cache.Tombstones(cfg.Cache.Tombstones),
	}
}

// Load reads the configuration file and replaces the running configuration: see Reload. by is the requester, for the
// log.
func (r *Relay) Load(ctx context.Context, by string) error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	if r.load == nil {
		r.log.Warn("the configuration was not reloaded", "by", by, "reason", operator.ErrBuiltIn)
		return operator.ErrBuiltIn
	}
	defer r.notifyReload()()
	// Hold the lock while reading, so that of several reloads the last one has the newest file.
	cfg, err := r.load()
	if err != nil {
		r.noteFailure(err, by)
		return err
	}
	return r.reload(ctx, cfg, by)
}

func (r *Relay) configStatus() operator.ConfigStatus {
	r.reloads.mu.Lock()
	defer r.reloads.mu.Unlock()
	return operator.ConfigStatus{Hash: r.Hash(), Loaded: r.reloads.loaded, Failures: r.reloads.failures, Problem: r.reloads.problem, Changes: r.reloads.changed}
}
