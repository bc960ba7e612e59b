package relay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/certs"
	"github.com/xds-relay/xds-relay/collections"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/process"
	"github.com/xds-relay/xds-relay/rollout/gate"
	"github.com/xds-relay/xds-relay/store"
)

// removalHold is longer than the time between the first and the last response with which a
// control plane sends one change, and too short for users to notice.
const removalHold = 100 * time.Millisecond

// Relay is a running relay: its cache, the sources of the cache, and the listeners that
// serve clients from it. Call [New], then Listen, Run and Close, in this order and each once.
type Relay struct {
	cfg         *configs.Config
	credentials *certs.Store
	issuers     issuers
	log         *slog.Logger
	cache       *cache.Cache
	origins     *origins
	scopes      *scopes
	derived     guardedDerived
	rollouts    *gate.Controller // nil if no authority has a rollout
	rejections  *rejections
	server      *downstream.Server
	health      *health.Server
	readiness   *readiness
	shutdown    *process.Shutdown
	memory      *process.Memory
	store       *store.Store // nil if nothing is stored
	admin       *admin.Server
	metrics     *admin.Metrics

	listeners []*listener
	addresses []string  // of the client listeners
	operator  *operator // nil if there is none
}

// ErrDrain is the cause of the end of Run's context if the relay is to drain its listeners.
var ErrDrain = errors.New("the relay is to drain its listeners")

// Options are what a relay needs besides its configuration.
type Options struct {
	// Files, if not nil, holds the resources of the authorities' directories in place of
	// the disk.
	Files fs.FS
	Log   *slog.Logger
	// Shutdown bounds the time that the relay takes to end. It may be nil.
	Shutdown *process.Shutdown
	// Memory is that of the process; that of its cgroup if nil.
	Memory *process.Memory
}

// New puts a relay together. It connects to nothing yet. Its errors are those of the files
// that the configuration names.
func New(cfg *configs.Config, o Options) (*Relay, error) {
	if o.Files == nil {
		if err := cfg.CheckFiles(); err != nil {
			return nil, fmt.Errorf("the configuration cannot be used here:\n%w", err)
		}
	}
	log := o.Log
	if o.Shutdown == nil {
		o.Shutdown = process.NewShutdown(log)
	}
	if o.Memory == nil {
		o.Memory = process.NewMemory(process.CgroupMemory("/"))
	}
	r := &Relay{cfg: cfg, log: log, memory: o.Memory, credentials: certs.NewStore(log), health: health.NewServer(), shutdown: o.Shutdown}
	r.readiness = newReadiness(cfg)
	r.setHealth(healthpb.HealthCheckResponse_NOT_SERVING)
	router := authority.New(cfg)
	r.scopes = newScopes()
	r.cache = cache.New(r.scopes, cache.Options{
		Linger: cfg.Cache.Linger, IdleEntries: cfg.Cache.IdleEntries, IdleScopes: cfg.Cache.IdleScopes,
		Tombstones: cache.Tombstones(cfg.Cache.Tombstones),
	})
	r.rollouts = newRollouts(cfg, router, r.cache, log)
	var err error
	if r.origins, err = newOrigins(cfg, router, o.Files, r.credentials, r.cache, r.rollouts, log); err != nil {
		r.credentials.Close()
		return nil, err
	}
	if r.store, err = openStore(cfg.Store, r.cache, log); err != nil {
		r.cache.Close()
		r.origins.Close()
		r.credentials.Close()
		r.issuers.close()
		return nil, err
	}
	r.origins.keep(r.store, cfg.Store.Wait)
	r.scopes.open, r.scopes.rollouts = r.origins.open, r.rollouts
	names := leafNames{router, r.origins.reachability}
	settings := r.origins.guards.settings()
	settings.Waits = r.origins.derivedWaits
	r.derived.guard = guard.New(r.cache, r.cache, settings)
	r.derived.Resolver = collections.NewResolver(guardedTopics{r.cache, r.derived.guard}, names, collections.Options{Views: viewsOf(cfg), SpeaksFor: names.Speaks, Log: log})
	r.origins.reachability.Notify(func(cache.Scope) { r.derived.ReachabilityChanged() })
	r.scopes.derived = r.derived
	var refusals loglines.Shared
	may := NewRights(cfg, router)
	namesFor := func(c downstream.Client) downstream.Names {
		asks := configs.Client{Node: c.Node, Identity: c.Identity}
		return &clientNames{
			router: router, nodes: r.scopes.nodes, client: asks, log: log,
			views: router.ViewMatcher(asks), through: c.Through, chains: r.origins.chains,
			lines: &refusals, rights: may.Of(c.Identity, c.SecretsForAnyone),
		}
	}
	r.rejections = newRejections(r.origins.passOn)
	serve := downstream.Options{RelayID: cfg.Node.ID, RemovalHold: removalHold, Log: log, Rejected: r.rejections.add}
	if r.rollouts != nil {
		serve.Rollouts = &rollouts{Controller: r.rollouts, router: router, log: log}
	}
	r.server = downstream.NewServer(r.cache, namesFor, serve)
	if err := r.observe(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Listen opens all sockets, so that a port that is taken is an error before any client is
// served.
func (r *Relay) Listen(ctx context.Context) error {
	for i := range r.cfg.Listeners {
		l := &r.cfg.Listeners[i]
		socket, address, err := openSocket(ctx, l.Address, l.Mode)
		if err != nil {
			return fmt.Errorf("listeners[%d].address: %w", i, err)
		}
		tlsConfig, err := r.listenerTLS(l)
		if err != nil {
			_ = socket.Close()
			return fmt.Errorf("listeners[%d].tls: %w", i, err)
		}
		identify, err := r.identify(l)
		if err != nil {
			_ = socket.Close()
			return fmt.Errorf("listeners[%d].jwt: %w", i, err)
		}
		r.listeners = append(r.listeners, r.newListener(l, socket, address, tlsConfig, identify))
		r.addresses = append(r.addresses, address)
	}
	return r.listenOperator(ctx)
}

// Addresses returns the addresses of the client listeners, in the order of the
// configuration.
func (r *Relay) Addresses() []string { return r.addresses }

// AdminAddress returns the address of the admin listener, or "" if there is none.
func (r *Relay) AdminAddress() string {
	if r.operator == nil {
		return ""
	}
	return r.operator.address
}

// Run serves until ctx ends or a listener fails. It returns the failure. If the cause of ctx's end
// is [ErrDrain], it drains the listeners before it returns; otherwise clients' streams end at once.
func (r *Relay) Run(ctx context.Context) error {
	failed := make(chan error, len(r.listeners)+1)
	var wg sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := func() uint64 { return r.server.Stats().Ended + r.cache.Stats().GivenUp }
	wg.Go(func() { process.CollectGarbage(running, ended) })
	wg.Go(func() { r.getReady(running) })
	select {
	case <-r.readiness.done:
	case <-time.After(headStart):
	}
	for _, l := range r.listeners {
		r.log.Info("serving clients", "address", l.address, "protocol", string(l.protocol))
		wg.Go(func() {
			if err := l.serve(); err != nil {
				failed <- fmt.Errorf("listener %s: %w", l.address, err)
			}
		})
	}
	if r.operator != nil {
		r.log.Info("serving the operator", "address", r.operator.address)
		wg.Go(func() {
			if err := r.operator.serve(); err != nil {
				failed <- err
			}
		})
	}
	r.admin.SetReady(true)
	wg.Go(func() { r.awaitReady(running) })
	var err error
	select {
	case <-ctx.Done():
		r.log.Info("shutting down", "clients", r.server.Clients())
	case err = <-failed:
		r.shutdown.Fail(err)
	}
	r.notify(process.NotifyStopping)
	r.admin.SetReady(false)
	r.health.Shutdown()
	if err == nil && errors.Is(context.Cause(ctx), ErrDrain) {
		r.drain()
	}
	r.shutdown.Stage("ending requests")
	stop()
	// Clients connect to another replica, or reconnect later.
	r.server.EndPolls()
	var finishing sync.WaitGroup
	for _, l := range r.listeners {
		finishing.Go(l.finish)
	}
	finishing.Wait()
	r.shutdown.Stage("closing clients' connections")
	for _, l := range r.listeners {
		l.stop()
	}
	if r.operator != nil {
		err = errors.Join(err, r.operator.stop())
	}
	wg.Wait()
	return err
}

// Close closes the sources. Call it also if Listen or Run failed.
func (r *Relay) Close() {
	for _, l := range r.listeners {
		l.stop() // a second time, unless Run was not called
	}
	if r.operator != nil {
		_ = r.operator.stop()
	}
	r.cache.Close()
	r.shutdown.Stage("evaluating redirects and collections")
	r.derived.Close()
	r.derived.guard.Close()
	r.rejections.close()
	if r.rollouts != nil {
		r.rollouts.Close()
	}
	r.shutdown.Stage("unsubscribing from control planes")
	r.scopes.Close()
	r.shutdown.Stage("closing connections to control planes, and reading directories")
	r.origins.Close()
	r.credentials.Close()
	r.issuers.close()
	if r.store != nil {
		r.shutdown.Stage("closing the store")
		if err := r.store.Close(); err != nil {
			r.log.Error("the store could not be closed", "reason", err)
		}
	}
	if r.metrics != nil {
		_ = r.metrics.Shutdown(context.Background()) // no more reads
	}
}
