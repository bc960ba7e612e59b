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

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/process"
	"github.com/xds-relay/xds-relay/store"
	"github.com/xds-relay/xds-relay/xdstype"
)

// When the relay is ready: its listeners accept, and each authority has something to serve, or a
// control plane to ask. What was ready once stays so: the loss of a control plane is no reason
// to take clients away from a relay that holds what they need.

// readiness is what the relay waits for at its start. It is made by newReadiness.
type readiness struct {
	timeout time.Duration
	began   time.Time

	mu          sync.Mutex
	authorities []*authorityReadiness
	over        bool // the time has passed
	// done is closed once nothing is missing, or the time has passed.
	done chan struct{}
}

// authorityReadiness is that of one authority. readiness.mu guards it.
type authorityReadiness struct {
	name    string
	ready   bool
	missing string // why it is not ready
}

// newReadiness returns the readiness of the authorities that are not patterns: what a pattern
// covers is not known before somebody asks.
func newReadiness(cfg *configs.Config) *readiness {
	r := &readiness{timeout: cfg.Admin.ReadyTimeout, began: time.Now(), done: make(chan struct{})}
	for i := range cfg.Authorities {
		if a := &cfg.Authorities[i]; !a.IsPattern() {
			r.authorities = append(r.authorities, &authorityReadiness{name: a.Name, missing: "not tried yet"})
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.check()
	return r
}

// of returns that of an authority, nil of a pattern. The caller holds mu.
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

// forget notes that authorities are not configured any more: nobody waits for them.
func (r *readiness) forget(cfg *configs.Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.authorities = slices.DeleteFunc(slices.Clone(r.authorities), func(a *authorityReadiness) bool {
		return !slices.ContainsFunc(cfg.Authorities, func(of configs.Authority) bool { return of.Name == a.name })
	})
	r.check()
}

// end notes that the time has passed.
func (r *readiness) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.check()
}

// check closes done if it is time. The caller holds mu.
func (r *readiness) check() {
	if !r.over && slices.ContainsFunc(r.authorities, func(a *authorityReadiness) bool { return !a.ready }) {
		return
	}
	select {
	case <-r.done:
	default:
		close(r.done)
	}
}

// missing returns why an authority is not ready, "" if it is; overdue says that nobody waits for it
// any more.
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

// checkReady adds the reasons of /readyz.
func (r *Relay) checkReady() {
	r.admin.CheckReady("certificates", func() (string, error) { return "", r.credentials.CheckListeners() })
	for _, a := range r.readiness.authorities {
		r.admin.CheckReady("authority/"+a.name, func() (note string, err error) {
			why, overdue := r.readiness.missing(a.name)
			switch {
			case why == "":
				return "", nil
			case overdue:
				return fmt.Sprintf("not waited for after %v: %s", r.readiness.timeout, why), nil
			}
			return "", fmt.Errorf("authority %q: %s", a.name, why)
		})
	}
}

// setHealth sets the answer of gRPC health for the relay and each of its services.
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

// awaitReady says to everybody that the relay is ready, once it is.
func (r *Relay) awaitReady(ctx context.Context) {
	select {
	case <-r.readiness.done:
	case <-ctx.Done():
		return
	}
	r.setHealth(healthpb.HealthCheckResponse_SERVING)
	if missing := r.readiness.missingAll(); len(missing) > 0 {
		r.log.Warn("ready, though not everything is there", "after", time.Since(r.readiness.began).Round(time.Millisecond), "missing", strings.Join(missing, "; "))
	} else {
		r.log.Info("ready", "after", time.Since(r.readiness.began).Round(time.Millisecond))
	}
	r.notify(process.NotifyReady)
}

// notify tells systemd.
func (r *Relay) notify(states ...string) {
	if err := process.Notify(states...); err != nil {
		r.log.Warn("systemd cannot be notified", "states", states, "reason", err)
	}
}

const (
	// readySoon is after what time what is not ready is tried again, and readyEvery the longest
	// such time.
	readySoon  = 2 * time.Millisecond
	readyEvery = 250 * time.Millisecond
	// storedAfter is how long control planes have before the relay looks what it has stored of
	// their authorities: that reads records of other authorities, too.
	storedAfter = time.Second
	// headStart is how long control planes have before the relay accepts clients. Those that can be
	// reached are by then, so that the first probe of an orchestrator finds the relay ready.
	headStart = 100 * time.Millisecond
)

// getReady tries all authorities until they are ready, or ctx ends.
func (r *Relay) getReady(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.readiness.timeout)
	defer cancel()
	var all sync.WaitGroup
	now := r.now()
	for _, o := range now.origins {
		if !o.authority.IsPattern() {
			all.Go(func() { r.getAuthorityReady(ctx, o) })
		}
	}
	if now.store != nil {
		all.Go(func() { r.findStored(ctx) })
	}
	all.Wait()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r.readiness.end()
	}
}

func (r *Relay) getAuthorityReady(ctx context.Context, o *origin) {
	a := o.authority
	try := func() error {
		if now := r.now().origins[a.Name]; now != nil { // a reload may have replaced it
			o = now
		}
		if o.directory != nil {
			return o.directory.CheckRead()
		}
		return r.origins.reach(ctx, o)
	}
	for pause := readySoon; !r.readiness.isReady(a.Name); pause = min(2*pause, readyEvery) {
		err := try()
		if err == nil {
			r.readiness.is(a.Name)
			return
		}
		if ctx.Err() != nil {
			return // the last reason says more
		}
		r.readiness.lacks(a.Name, err.Error())
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// reach returns nil once one of an origin's servers takes a connection. It tries them in the
// order of their priority.
func (s *origins) reach(ctx context.Context, o *origin) error {
	var failures []string
	for _, server := range o.servers {
		within, cancel := context.WithTimeout(ctx, connectWithin)
		err := s.reached.reach(within, server.config, server.conn)
		cancel()
		if err == nil {
			return nil
		}
		failures = append(failures, fmt.Sprintf("server %s: %v", server.config.Address, err))
	}
	return errors.New("no server takes a connection: " + strings.Join(failures, "; "))
}

// reached are the servers that were tried. Authorities whose connections differ in details share the
// result: their servers are not connected to before somebody asks.
type reached struct {
	mu sync.Mutex
	at map[target]*attempts
}

// target is where a connection goes to, and what it shows and trusts there.
type target struct {
	address, tokenFile string
	rest               bool
	tls                configs.ServerTLS // by value
	secure             bool
}

// attempts are those to connect to one target.
type attempts struct {
	mu      sync.Mutex // held during an attempt
	reached bool
	failure error
	failed  time.Time
}

func (r *reached) reach(ctx context.Context, server *configs.Server, conn connection) error {
	to := target{address: server.Address, tokenFile: server.TokenFile, rest: server.Protocol == configs.ProtocolREST}
	if server.TLS != nil {
		to.tls, to.secure = *server.TLS, true
	}
	r.mu.Lock()
	if r.at == nil {
		r.at = map[target]*attempts{}
	}
	of := r.at[to]
	if of == nil {
		of = &attempts{}
		r.at[to] = of
	}
	r.mu.Unlock()
	of.mu.Lock()
	defer of.mu.Unlock()
	switch {
	case of.reached:
		return nil
	case of.failure != nil && time.Since(of.failed) < readySoon:
		return of.failure
	}
	of.failure = conn.Reach(ctx)
	of.reached, of.failed = of.failure == nil, time.Now()
	return of.failure
}

// findStored notes the authorities of which something is stored.
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
	_, err := now.store.All(func(of *store.Record) bool {
		if of.Resource != nil {
			if a, ok := now.router.Source(of.Topic.Scope); ok {
				r.readiness.is(a.Name)
			}
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
