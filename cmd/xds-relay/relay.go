package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/health"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/collections"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/loglines"
)

// removalHold is longer than a control plane takes from the first to the last of the
// responses to one change, and short enough for nobody to notice.
const removalHold = 100 * time.Millisecond

// relay is the whole of a running relay: a cache, what feeds it, and what serves
// from it.
type relay struct {
	cfg     *configs.Config
	log     *slog.Logger
	cache   *cache.Cache
	sources *sources
	feeders *feeders
	derived *collections.Resolver
	server  *downstream.Server
	health  *health.Server
	ending  *ending
	admin   *admin.Server
	metrics *admin.Metrics

	listeners    []*listener
	addresses    []string // on which clients are served
	adminSocket  net.Listener
	adminAddress string
}

// newRelay puts a relay together. builtIn, if not nil, is what the authorities'
// directories are read from instead of the disk. Errors are those of the files
// that the configuration names.
func newRelay(cfg *configs.Config, builtIn fs.FS, log *slog.Logger) (*relay, error) {
	if builtIn == nil {
		if err := cfg.CheckFiles(); err != nil {
			return nil, fmt.Errorf("the configuration cannot be used here:\n%w", err)
		}
	}
	r := &relay{cfg: cfg, log: log, health: health.NewServer(), ending: newEnding(log)}
	router := authority.New(cfg)
	r.feeders = newFeeders()
	r.cache = cache.New(r.feeders, cache.Options{
		Linger: cfg.Cache.Linger, IdleEntries: cfg.Cache.IdleEntries, IdleScopes: cfg.Cache.IdleScopes,
		Tombstones: cache.Tombstones(cfg.Cache.Tombstones),
	})
	var err error
	if r.sources, err = newSources(cfg, router, builtIn, r.cache, log); err != nil {
		return nil, err
	}
	r.feeders.open = r.sources.open
	names := leafNames{router, r.sources.reach}
	r.derived = collections.NewResolver(r.cache, names, collections.Options{Views: viewsOf(cfg), Speaks: names.Speaks, Log: log})
	r.sources.reach.Notify(func(cache.Scope) { r.derived.ReachabilityChanged() })
	r.feeders.derived = r.derived
	var unservable loglines.Shared
	namesFor := func(node *corev3.Node, through chain.Chain) downstream.Names {
		return &clientNames{
			router: router, feeders: r.feeders, node: node, log: log,
			views: router.ViewMatcher(node), through: through, chains: r.sources.chains,
			lines: &unservable,
		}
	}
	r.server = downstream.NewServer(r.cache, namesFor, downstream.Options{RelayID: cfg.Node.ID, RemovalHold: removalHold, Log: log})
	if err := r.observe(); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// listen opens all sockets, so that a port that is taken is known before anybody
// is served.
func (r *relay) listen(ctx context.Context) error {
	var lc net.ListenConfig
	for i, l := range r.cfg.Listeners {
		socket, err := lc.Listen(ctx, "tcp", l.Address)
		if err != nil {
			return fmt.Errorf("listeners[%d].address: %w", i, err)
		}
		var tlsConfig *tls.Config
		if l.TLS != nil {
			if tlsConfig, err = l.TLS.Load(); err != nil {
				_ = socket.Close()
				return fmt.Errorf("listeners[%d].tls: %w", i, err)
			}
		}
		r.listeners = append(r.listeners, r.newListener(&l, socket, tlsConfig))
		r.addresses = append(r.addresses, socket.Addr().String())
	}
	if r.cfg.Admin.Address == "" {
		return nil
	}
	socket, err := lc.Listen(ctx, "tcp", r.cfg.Admin.Address)
	if err != nil {
		return fmt.Errorf("admin.address: %w", err)
	}
	r.adminSocket, r.adminAddress = admin.Limit(socket), socket.Addr().String()
	return nil
}

// run serves until ctx ends, or a listener fails.
func (r *relay) run(ctx context.Context) error {
	failed := make(chan error, len(r.listeners)+1)
	var wg sync.WaitGroup
	collecting, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { r.collectGarbage(collecting) })
	for _, l := range r.listeners {
		r.log.Info("serving clients", "address", l.socket.Addr().String(), "protocol", string(l.protocol))
		wg.Go(func() {
			if err := l.serve(); err != nil {
				failed <- fmt.Errorf("listener %s: %w", l.socket.Addr(), err)
			}
		})
	}
	var adminHTTP *http.Server
	if r.adminSocket != nil {
		r.log.Info("serving the operator", "address", r.adminAddress)
		adminHTTP = r.admin.HTTP(r.log)
		wg.Go(func() {
			if err := adminHTTP.Serve(r.adminSocket); err != nil && !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("admin listener: %w", err)
			}
		})
	}
	r.admin.SetReady(true)
	var err error
	select {
	case <-ctx.Done():
		r.log.Info("ending", "clients", r.server.Clients())
	case err = <-failed:
		r.ending.fails(err)
	}
	r.ending.does("ending requests")
	stop()
	r.admin.SetReady(false)
	r.health.Shutdown()
	// Clients go to another replica, or come back.
	r.server.EndPolls()
	var finishing sync.WaitGroup
	for _, l := range r.listeners {
		finishing.Go(l.finish)
	}
	finishing.Wait()
	r.ending.does("closing clients' connections")
	for _, l := range r.listeners {
		l.stop()
	}
	if adminHTTP != nil {
		err = errors.Join(err, adminHTTP.Close())
	}
	wg.Wait()
	return err
}

// close ends the feeding. It is called once, also if listen or run failed.
func (r *relay) close() {
	for _, l := range r.listeners {
		l.stop() // again, unless run never began
	}
	if r.adminSocket != nil {
		_ = r.adminSocket.Close()
	}
	r.cache.Close()
	r.ending.does("evaluating redirects and collections")
	r.derived.Close()
	r.ending.does("taking leave of control planes")
	r.feeders.Close()
	r.ending.does("closing connections to control planes, and reading directories")
	r.sources.Close()
	if r.metrics != nil {
		_ = r.metrics.Shutdown(context.Background()) // reads nothing any more
	}
}
