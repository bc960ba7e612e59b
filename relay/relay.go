package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/collections"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/history"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/prefetch"
	"github.com/xds-relay/xds-relay/internal/process"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/sockets"
	"github.com/xds-relay/xds-relay/internal/telemetry"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

// removalHold is longer than the time between the first and the last response with which a
// control plane sends one change, and too short for users to notice.
const removalHold = 100 * time.Millisecond

// sendingLast bounds the time for the last metrics, and for the last traces.
const sendingLast = 2 * time.Second

// Relay is a running relay: its cache, the sources of the cache, and the listeners that
// serve clients from it. Call [New], then Listen, Run and Close, in this order and each once. Between
// Listen and Close, Reload may be called.
type Relay struct {
	files       fs.FS // as in Options
	load        func() (*configs.Config, error)
	checks      checks
	credentials *certs.Store
	issuers     issuers
	log         *slog.Logger
	cache       *cache.Cache
	origins     *origins
	scopes      *scopes
	derived     derivedSource
	rollouts    *gate.Controller
	rejections  *rejections
	loads       *loads
	prefetcher  *prefetcher
	server      *downstream.Server
	health      *health.Server
	fleet       *atomic.Pointer[membership] // that of origins
	peersHealth *health.Server              // towards other members of the fleet
	peerStreams peerStreams
	instance    string // see fleet.Options
	readiness   *readiness
	shutdown    *process.Shutdown
	memory      *process.Memory
	admin       *admin.Server
	metrics     *admin.Metrics
	propagation *propagationMetrics
	changes     *propagation.Tracker
	history     *history.History
	exports     bool // metrics are also pushed to a collector
	refusals    loglines.Shared

	reloading sync.Mutex // held during a reload, and when the relay begins to end
	ended     bool       // no reload starts any more; guarded by reloading
	reloads   reloads
	// stores has the stores that may be open, by their paths; guarded by reloading.
	stores   map[string]*sharedStore
	observer *operator.Observer // nil until observe
	// ending waits for removed listeners, and endings ends when their streams have to end.
	ending  sync.WaitGroup
	endings context.Context
	endNow  context.CancelFunc

	listening sync.Mutex // comes last
	listeners []*listener
	operator  *adminListener // nil if there is none
	running   *serving       // nil before Run
}

// ErrDrain is the cause of the end of Run's context if the relay is to drain its listeners.
var ErrDrain = errors.New("the relay is to drain its listeners")

// Options are what a relay needs in addition to its configuration.
type Options struct {
	// Files, if not nil, replaces the disk for the authorities' directories.
	Files fs.FS
	Log   *slog.Logger
	// Load, if not nil, reads the configuration again, for Relay.Load.
	Load func() (*configs.Config, error)
	// Parse, if not nil, parses the text of a configuration as Load does, for an operator who checks it. Errors
	// contain name in place of the file's name.
	Parse func(name string, text []byte) (*configs.Config, error)
	// Shutdown bounds the time that the relay takes to shut down. It may be nil.
	Shutdown *process.Shutdown
	// Memory measures the memory of the process; nil: that of its cgroup.
	Memory *process.Memory
	// GCTuner, if not nil, is the process's. Run runs it.
	GCTuner *process.GCTuner
	// Telemetry is the collector of metrics and traces; nil: none. The admin listener has the metrics in any case.
	Telemetry *telemetry.Telemetry
}

// New returns a relay that has not connected to anything yet. Errors are about the files that the configuration names.
func New(cfg *configs.Config, o Options) (*Relay, error) {
	if o.Files == nil {
		if err := cfg.CheckFiles(); err != nil {
			return nil, fmt.Errorf("the configuration cannot be used here:\n%w", err)
		}
	}
	changes := newHistory(o.Log)
	log := slog.New(changes.Handler(o.Log.Handler()))
	if o.Shutdown == nil {
		o.Shutdown = process.NewShutdown(log)
	}
	if o.Telemetry == nil {
		o.Telemetry = &telemetry.Telemetry{}
	}
	if o.Memory == nil {
		o.Memory = process.NewMemory(process.CgroupMemory("/"))
	}
	r := &Relay{files: o.Files, load: o.Load, checks: checks{parse: o.Parse}, memory: o.Memory, history: changes, log: log, credentials: certs.NewStore(log), health: health.NewServer(), peersHealth: health.NewServer(), instance: rand.Text(), stores: map[string]*sharedStore{}, shutdown: o.Shutdown}
	r.endings, r.endNow = context.WithCancel(context.Background())
	r.readiness = newReadiness(cfg)
	r.scopes = newScopes()
	if err := r.beginMetrics(o.Telemetry); err != nil {
		r.credentials.Close()
		return nil, err
	}
	options := cacheOptions(cfg)
	options.Changes = r.changes
	r.cache = cache.New(r.scopes, options)
	r.rollouts = newRollouts(r.now, r.cache, log)
	r.origins = newOrigins(cfg, r.credentials, r.cache, r.rollouts, changes, log)
	r.fleet = r.origins.fleet
	r.origins.tracer, r.origins.gcTuner = o.Telemetry.Tracer, o.GCTuner
	g, err := r.firstGeneration(cfg)
	if err != nil {
		r.cache.Close()
		r.credentials.Close()
		return nil, err
	}
	r.origins.newest.Store(g)
	r.setHealth(healthpb.HealthCheckResponse_NOT_SERVING)
	r.scopes.open, r.scopes.rollouts, r.scopes.topics = r.origins.open, r.rollouts, r.cache
	r.scopes.planeOf = r.origins.planeOf
	r.scopes.takeOver, r.scopes.try = r.origins.takeOver, r.origins.try
	r.scopes.resumes = r.origins.resumes
	r.origins.nodes = r.scopes.nodes
	r.scopes.nodes.Changed = func(scope cache.Scope) { r.scopes.renewNode(scope, r.origins.fingerprint, r.cache.EachTopic) }
	names := leafNames{r.now, r.origins}
	settings := r.origins.guards.settings()
	settings.Waits = r.origins.derivedWaits
	r.derived.feed = feed.New(feed.Options{Guard: settings, Cache: r.cache, Log: log})
	r.derived.Resolver = collections.NewResolver(r.cache, r.derived.feed.Link(), names, collections.Options{Views: viewsOf(g), SpeaksFor: names.Speaks, Log: log})
	r.origins.reachability.Notify(func(scope cache.Scope) {
		r.derived.ReachabilityChanged()
		r.reachabilityChanged(scope)
	})
	r.scopes.derived = r.derived
	r.loads = newLoads(r)
	r.prefetcher = &prefetcher{prefetch.New(r.cache, prefetchSettings(cfg)), r}
	var manyBegun func(names int)
	if o.GCTuner != nil {
		manyBegun = o.GCTuner.ExpectNames
	}
	r.server = downstream.NewServer(r.cache, r.namesFor, downstream.Options{
		RelayID: cfg.Node.ID, UserAgent: configs.UserAgent, RemovalHold: removalHold, Log: log, Rejected: func(of downstream.ScopeType, polled *downstream.Rejecters) { r.rejections.add(of, polled) }, Loads: r.loads, Prefetcher: r.prefetcher, ManyBegun: manyBegun, Memory: process.NewHeap(), SecretsIn: new(naming.SecretNames).In,
		Views: names, Rollouts: &rollouts{Controller: r.rollouts, newest: r.now, log: log}, KeepsBack: r.rollouts.KeepsBack,
	})
	r.rejections = newRejections(r.server.CountRejecters, r.origins.passOn)
	r.origins.answered = func(scope cache.Scope, typeURL string) {
		if r.server.HasRejecters(typeURL) {
			r.rejections.again(downstream.ScopeType{Scope: scope, TypeURL: typeURL})
		}
	}
	r.configure(g)
	r.reloads.loaded = time.Now()
	changes.Keep(cfg.Admin.Address != "")
	if err := r.observe(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// now returns the newest generation of the configuration.
func (r *Relay) now() *generation { return r.origins.newest.Load() }

// firstGeneration returns the generation of the configuration that the relay starts with.
func (r *Relay) firstGeneration(cfg *configs.Config) (*generation, error) {
	types, err := loadTypes(cfg, nil)
	if err != nil {
		return nil, err
	}
	descriptors.Use(types)
	opened, err := openStore(cfg.Store, r.cache, r.origins.storedTopics(r.cache), r.log)
	if err != nil {
		return nil, err
	}
	r.noteStore(opened)
	return r.origins.newGeneration(parts{cfg: cfg, files: r.files, store: opened, types: types})
}

// namesFor returns what names mean for a client, by the newest generation.
func (r *Relay) namesFor(c downstream.Client) downstream.Names { return r.namesOf(r.now(), c) }

// namesOf returns what names mean for a client, by a generation.
func (r *Relay) namesOf(g *generation, c downstream.Client) *naming.Names {
	asks := configs.Client{Node: c.Node, Identity: c.Identity}
	names := &naming.Names{
		Router: g.router, Generation: g.number, Nodes: r.scopes.nodes, Client: asks, Log: r.log,
		Views: g.router.ViewMatcher(asks),
		Lines: &r.refusals, ClientRights: g.rights.Of(c.Identity, c.SecretsForAnyone),
	}
	if c.Through.Relay {
		names.Relay = naming.NewRelayClient(c, r.origins.chains)
	}
	return names
}

// Listen opens all sockets. So the relay notices a port in use before it serves any client.
func (r *Relay) Listen(ctx context.Context) error {
	cfg := r.now().cfg
	plans, errs := r.planListeners(ctx, cfg, new(sockets.Leaving))
	operator, problem := r.planOperator(ctx, cfg, new(sockets.Leaving))
	if problem != nil {
		errs = append(errs, *problem)
	}
	if err := configs.InOrder(errs); err != nil {
		undoListeners(plans)
		r.undoOperator(operator)
		return err
	}
	r.commitListeners(plans)
	r.commitOperator(operator, false)
	r.commitFleet(cfg, r.planFleet(cfg, peersAddress(plans)))
	return nil
}

// Addresses returns the addresses of the clients' listeners, in the order of the configuration.
func (r *Relay) Addresses() (addresses []string) {
	for _, l := range r.openListeners() {
		if !l.peers {
			addresses = append(addresses, l.address)
		}
	}
	return addresses
}

// PeersAddress returns the address of the listener for other members of the fleet, or "" if there is none.
func (r *Relay) PeersAddress() string {
	for _, l := range r.openListeners() {
		if l.peers {
			return l.address
		}
	}
	return ""
}

// peersAddress is PeersAddress for planned listeners.
func peersAddress(plans []*listenerPlan) string {
	for _, p := range plans {
		if p.peers {
			return p.listener.address
		}
	}
	return ""
}

// AdminAddress returns the address of the admin listener, or "" if there is none.
func (r *Relay) AdminAddress() string {
	if o := r.theOperator(); o != nil {
		return o.address
	}
	return ""
}

// serving has the goroutines that serve while Run runs.
type serving struct {
	ctx context.Context // ends when they have to end
	wg  sync.WaitGroup
}

// beginPeers starts to serve other members of the fleet, and returns the server that does.
func (r *Relay) beginPeers(run *serving) *clientServer {
	for _, l := range r.openListeners() {
		if l.peers {
			s := l.servers()[0]
			r.serve(run, l, s)
			return s
		}
	}
	return nil
}

// begin starts to serve on all listeners. begun is a server that has started already.
func (r *Relay) begin(run *serving, begun *clientServer) {
	r.listening.Lock()
	r.running = run
	listeners, operator := slices.Clone(r.listeners), r.operator
	r.listening.Unlock()
	for _, l := range listeners {
		if s := l.servers()[0]; s != begun {
			r.serve(run, l, s)
		}
	}
	if operator != nil {
		r.serveOperator(run, operator)
	}
}

// noMoreReloads waits for the present reload, if any, and has later ones refused.
func (r *Relay) noMoreReloads() {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	r.ended = true
}

// Run serves until ctx ends. A listener that fails is opened again. If the cause of ctx's end is [ErrDrain], Run drains
// the listeners before it returns; otherwise clients' streams end at once. An error is that of closing the admin listener.
func (r *Relay) Run(ctx context.Context) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx)) // also while it drains
	defer stop()
	starting, started := context.WithCancel(ctx)
	defer started()
	run := &serving{ctx: running}
	ended := func() uint64 { return r.server.Stats().Ended + r.cache.Stats().GivenUp }
	run.wg.Go(func() { process.CollectGarbage(running, ended) })
	if t := r.origins.gcTuner; t != nil {
		run.wg.Go(func() { t.Run(running) })
	}
	if longest := r.readiness.timeout; longest > startsWithin {
		r.notify(process.NotifyTakes(longest + startsWithin))
	}
	r.reloading.Lock()
	begun := r.beginPeers(run)
	r.reloading.Unlock()
	run.wg.Go(func() { r.getReady(starting) })
	if m := r.fleet.Load(); m != nil {
		m.await(starting)
	}
	select {
	case <-r.readiness.done:
	case <-time.After(headStart):
	}
	// A reload starts servers, too, so this waits for it.
	r.reloading.Lock()
	r.begin(run, begun)
	r.reloading.Unlock()
	r.log.Info("the configuration runs", "config", r.Hash(), "event", "relay")
	r.admin.SetReady(true)
	run.wg.Go(func() { r.awaitReady(starting) })
	<-ctx.Done()
	r.log.Info("shutting down", "clients", r.server.Clients(), "event", "relay")
	r.notify(process.NotifyStopping)
	r.admin.SetReady(false)
	r.health.Shutdown()
	r.peersHealth.Shutdown() // other members get their scopes elsewhere
	r.noMoreReloads()
	if errors.Is(context.Cause(ctx), ErrDrain) {
		r.drain()
	}
	r.shutdown.Stage("ending requests")
	started()
	stop()
	// Clients connect to another replica, or reconnect later.
	r.server.EndPolls()
	listeners := r.openListeners()
	var finishing sync.WaitGroup
	for _, l := range listeners {
		finishing.Go(l.finish)
	}
	finishing.Wait()
	r.shutdown.Stage("closing clients' connections")
	for _, l := range listeners {
		l.stop()
	}
	var err error
	if o := r.theOperator(); o != nil {
		err = o.close()
	}
	r.endNow()
	r.ending.Wait()
	run.wg.Wait()
	return err
}

// Close closes the sources. Call it also if Listen or Run failed.
func (r *Relay) Close() {
	r.noMoreReloads()
	r.endNow()
	r.ending.Wait()
	for _, l := range r.openListeners() {
		l.stop() // a second time, unless Run was not called
	}
	if o := r.theOperator(); o != nil {
		_ = o.close()
	}
	if m := r.fleet.Swap(nil); m != nil {
		m.close()
	}
	r.prefetcher.Close()
	r.cache.Close()
	r.shutdown.Stage("evaluating redirects and collections")
	r.derived.Close()
	r.derived.feed.Close()
	r.rejections.close()
	r.rollouts.Close()
	r.shutdown.Stage("reporting the last load to control planes")
	r.loads.close()
	r.shutdown.Stage("unsubscribing from control planes")
	r.scopes.Close()
	r.shutdown.Stage("closing connections to control planes, directories and the store")
	r.origins.release(r.now())
	r.credentials.Close()
	r.issuers.close()
	r.changes.Close()
	if r.observer != nil {
		r.observer.Close()
	}
	if r.metrics != nil {
		ctx, cancel := context.WithTimeout(context.Background(), sendingLast)
		defer cancel()
		_ = r.metrics.Shutdown(ctx) // no more reads
	}
}
