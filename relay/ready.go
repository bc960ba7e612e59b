package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/process"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Readiness: the relay is ready when its listeners accept connections and each authority has something to serve, or a
// control plane that can be reached. It stays ready after that: losing a control plane is no reason to take clients
// away from a relay that holds what they need.

// readiness is what the relay waits for at its start. newReadiness makes it.
type readiness struct {
	timeout time.Duration
	began   time.Time

	mu          sync.Mutex
	authorities []*authorityReadiness
	changed     chan struct{} // closed when the authorities change
	over        bool          // the timeout has passed
	// done is closed once nothing is missing, or the timeout has passed.
	done chan struct{}
}

// authorityReadiness is the readiness of one authority. readiness.mu guards it.
type authorityReadiness struct {
	name    string
	ready   bool
	missing string // why it is not ready
}

// newReadiness returns the readiness of the authorities that are not patterns: which authorities a pattern covers is
// unknown until a client requests one.
func newReadiness(cfg *configs.Config) *readiness {
	r := &readiness{timeout: cfg.Admin.ReadyTimeout, began: time.Now(), changed: make(chan struct{}), done: make(chan struct{})}
	r.configure(cfg)
	return r
}

// configure notes which authorities are configured. The relay stops waiting for the others. Until it is ready, it
// also waits for the new ones.
func (r *readiness) configure(cfg *configs.Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.authorities
	r.authorities = nil
	for i := range cfg.Authorities {
		a := &cfg.Authorities[i]
		at := slices.IndexFunc(before, func(of *authorityReadiness) bool { return of.name == a.Name })
		switch {
		case at >= 0:
			r.authorities = append(r.authorities, before[at])
		case !a.IsPattern() && !r.isDone():
			r.authorities = append(r.authorities, &authorityReadiness{name: a.Name, missing: "not tried yet"})
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
	r.check()
}

// all returns the authorities that the relay waits for, and a channel that is closed when they change.
func (r *readiness) all() (authorities []*authorityReadiness, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.authorities, r.changed
}

// isDone reports whether the relay waits for nothing any more.
func (r *readiness) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// of returns the readiness of an authority, nil for a pattern. The caller holds mu.
func (r *readiness) of(name string) *authorityReadiness {
	i := slices.IndexFunc(r.authorities, func(a *authorityReadiness) bool { return a.name == name })
	if i < 0 {
		return nil
	}
	return r.authorities[i]
}

// is notes that an authority is ready.
func (r *readiness) is(authority string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.of(authority); a != nil {
		a.ready = true
		r.check()
	}
}

// isReady reports whether an authority is ready.
func (r *readiness) isReady(authority string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.of(authority)
	return a == nil || a.ready
}

// lacks notes why an authority is not ready.
func (r *readiness) lacks(authority, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.of(authority); a != nil {
		a.missing = why
	}
}

// end notes that the timeout has passed.
func (r *readiness) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.check()
}

// check closes done if nothing is missing, or the timeout has passed. The caller holds mu.
func (r *readiness) check() {
	if !r.over && slices.ContainsFunc(r.authorities, func(a *authorityReadiness) bool { return !a.ready }) {
		return
	}
	if !r.isDone() {
		close(r.done)
	}
}

// missing returns why an authority is not ready, "" if it is. overdue says that the relay does not wait for it any
// more.
func (r *readiness) missing(authority string) (why string, overdue bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.of(authority); a != nil && !a.ready {
		return a.missing, r.over
	}
	return "", false
}

// missingAll returns what is missing, in the order of the configuration.
func (r *readiness) missingAll() (missing []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.authorities {
		if !a.ready {
			missing = append(missing, fmt.Sprintf("authority %q: %s", a.name, a.missing))
		}
	}
	return missing
}

// checkReady adds the checks of listeners and authorities to /readyz.
func (r *Relay) checkReady() {
	r.admin.CheckReady("certificates", func() (string, error) { return "", r.credentials.CheckListeners() })
	r.admin.CheckReadyEach("authority", func(yield func(name, note string, err error)) {
		authorities, _ := r.readiness.all()
		for _, a := range authorities {
			switch why, overdue := r.readiness.missing(a.name); {
			case why == "":
				yield(a.name, "", nil)
			case overdue:
				yield(a.name, fmt.Sprintf("not waited for after %v: %s", r.readiness.timeout, why), nil)
			default:
				yield(a.name, "", fmt.Errorf("authority %q: %s", a.name, why))
			}
		}
	})
	r.admin.CheckReadyEach("listener", func(yield func(name, note string, err error)) {
		r.lost(func(address string, why error) {
			if why != nil {
				yield(address, "", fmt.Errorf("accepts no connections: %w", why))
			}
		})
	})
}

// setHealth sets the status in gRPC health of the relay and of each of its services.
func (r *Relay) setHealth(is healthpb.HealthCheckResponse_ServingStatus) {
	r.health.SetServingStatus("", is)
	for _, v2 := range []bool{false, true} {
		if v2 && !slices.ContainsFunc(r.now().cfg.Listeners, func(l configs.Listener) bool { return l.V2 }) {
			continue
		}
		for _, service := range xdstype.Services(v2) {
			r.health.SetServingStatus(service.Name, is)
		}
	}
}

// awaitReady reports that the relay is ready to gRPC health and systemd, once it is.
func (r *Relay) awaitReady(ctx context.Context) {
	select {
	case <-r.readiness.done:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return // the relay shuts down, and reports that
	}
	r.setHealth(healthpb.HealthCheckResponse_SERVING)
	if missing := r.readiness.missingAll(); len(missing) > 0 {
		r.log.Warn("ready, though not everything is there", "after", time.Since(r.readiness.began).Round(time.Millisecond), "missing", strings.Join(missing, "; "), "event", "relay")
	} else {
		r.log.Info("ready", "after", time.Since(r.readiness.began).Round(time.Millisecond), "event", "relay")
	}
	r.notify(process.NotifyReady)
}

// notify sends a state to systemd.
func (r *Relay) notify(states ...string) {
	if err := process.Notify(states...); err != nil {
		r.log.Warn("systemd cannot be notified", "states", states, "reason", err)
	}
}

const (
	// readySoon is the first delay before the relay tries an authority again, and readyEvery the longest. A server
	// that was tried within shareFor is not tried for another authority.
	readySoon  = 2 * time.Millisecond
	readyEvery = 5 * time.Second
	shareFor   = 250 * time.Millisecond
	// storedAfter is how long the relay waits for control planes before it looks up in the store what it has of their
	// authorities, which also reads records of other authorities.
	storedAfter = time.Second
	// headStart is how long the relay waits for control planes before it accepts clients. By then it has reached
	// those that can be reached, so an orchestrator's first probe finds the relay ready.
	headStart = 100 * time.Millisecond
	// startsWithin is less than the time that systemd gives a relay to start. If the readiness timeout is longer, the
	// relay asks systemd for more time.
	startsWithin = time.Minute
)

// getReady tries all authorities until they are ready, or ctx ends. After the timeout the relay does not wait for
// them, but the operator sees what is missing.
func (r *Relay) getReady(ctx context.Context) {
	over := time.AfterFunc(r.readiness.timeout, r.readiness.end)
	defer over.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	if r.now().store != nil {
		all.Go(func() { r.findStored(ctx) })
	}
	tried := map[*authorityReadiness]bool{}
	for !r.readiness.isDone() || len(tried) == 0 {
		authorities, changed := r.readiness.all()
		for _, a := range authorities {
			if !tried[a] {
				tried[a] = true
				all.Go(func() { r.getAuthorityReady(ctx, a.name) })
			}
		}
		select {
		case <-changed: // by a reload
		case <-r.readiness.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (r *Relay) getAuthorityReady(ctx context.Context, name string) {
	try := func() error {
		o := r.now().origins[name] // a reload may have replaced it
		switch {
		case o == nil:
			return errors.New("not configured any more")
		case o.directory != nil:
			return o.directory.CheckRead()
		}
		return r.reach(ctx, o)
	}
	for pause := readySoon; !r.readiness.isReady(name); pause = min(2*pause, readyEvery) {
		err := try()
		if err == nil {
			r.readiness.is(name)
			return
		}
		if ctx.Err() != nil {
			return
		}
		r.readiness.lacks(name, err.Error())
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// reach returns nil once one of an origin's servers accepts a connection. It tries them in the order of their
// priority.
func (r *Relay) reach(ctx context.Context, o *origin) error {
	var failures []string
	for _, server := range o.servers {
		to := targetOf(server.config)
		err := r.origins.reached.reach(ctx, to, r.firstTo(to, server.conn))
		if err == nil {
			return nil
		}
		failures = append(failures, fmt.Sprintf("server %s: %v", server.config.Address, err))
	}
	return errors.New("no server takes a connection: " + strings.Join(failures, "; "))
}

// reached has the results of connecting to servers. Authorities share them if their connections differ only in
// details: the relay does not connect to their servers before a client needs them.
type reached struct {
	mu sync.Mutex
	at map[target]*attempts
}

// target is the destination of a connection, with its credentials.
type target struct {
	address, tokenFile string
	rest               bool
	tls                configs.ServerTLS // by value
	secure             bool
}

func targetOf(s *configs.Server) target {
	to := target{address: s.Address, tokenFile: s.TokenFile, rest: s.Protocol == configs.ProtocolREST}
	if s.TLS != nil {
		to.tls, to.secure = *s.TLS, true
	}
	return to
}

// firstTo returns the connection of the first server in the configuration that has a target. So the same connection
// is used, whichever authority asks first.
func (r *Relay) firstTo(to target, other connection) connection {
	now := r.now()
	for i := range now.cfg.Authorities {
		if o := now.origins[now.cfg.Authorities[i].Name]; o != nil {
			for _, server := range o.servers {
				if targetOf(server.config) == to {
					return server.conn
				}
			}
		}
	}
	return other // a reload has removed it
}

// attempts are the attempts to connect to one target. reached.mu guards them.
type attempts struct {
	running chan struct{} // closed at the end of the running attempt; nil if there is none
	reached bool
	failure error
	failed  time.Time
}

// reach connects to a target. If another caller is connecting, or failed to a moment ago, it returns that result
// instead.
func (r *reached) reach(ctx context.Context, to target, conn connection) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil {
		r.at = map[target]*attempts{}
	}
	of := r.at[to]
	if of == nil {
		of = &attempts{}
		r.at[to] = of
	}
	switch {
	case of.running != nil:
		running := of.running
		r.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
		}
		r.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	case !of.reached && time.Since(of.failed) >= shareFor: // also the first one
		of.running = make(chan struct{})
		r.mu.Unlock()
		err := attempt(ctx, conn)
		r.mu.Lock()
		of.reached, of.failure, of.failed = err == nil, err, time.Now()
		close(of.running)
		of.running = nil
	}
	return of.failure
}

// attempt tries once to connect.
func attempt(ctx context.Context, conn connection) error {
	within, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	err := conn.Reach(within)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("does not answer within %v", connectWithin)
	}
	return err
}

// findStored notes the authorities that have something in the store.
func (r *Relay) findStored(ctx context.Context) {
	select {
	case <-time.After(storedAfter):
	case <-r.readiness.done:
		return
	case <-ctx.Done():
		return
	}
	now := r.now()
	if now.store == nil {
		return // by a reload
	}
	err := now.store.Served(func(scope cache.Scope) bool {
		if a, ok := now.router.Source(scope); ok {
			r.readiness.is(a.Name)
		}
		select {
		case <-r.readiness.done:
			return false
		default:
			return ctx.Err() == nil
		}
	})
	if err != nil {
		r.log.Error("the store could not be read", "reason", err)
	}
}
