package relay

// Whether this relay serves a scope to other members of the fleet: only while it hears the control plane. A relay that
// does not would keep the others from what they could get themselves, or send them what is older than what they have.

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/fleet"
)

const (
	// unreachableFor is how long the control planes of a scope are unreachable before members have to get it elsewhere.
	unreachableFor = 3 * time.Second
	// silentFor is how long a stream to a control plane is open without an answer before the control plane has nothing
	// new. silentForTrial is that for a member that has the scope from elsewhere meanwhile, and so can wait.
	silentFor, silentForTrial = 500 * time.Millisecond, 4 * time.Second
	// opensWithin is how long a stream to a control plane may take to open.
	opensWithin = 2 * time.Second
)

// errNotHeard is why members do not get a scope here for a while.
var errNotHeard = status.Error(codes.Unavailable, "this relay does not reach the control planes of the scope")

// awaitServers waits until a scope comes from the authority's servers, and these have answered on their present stream, or
// have nothing new. What the relay has from before may be older than what the member has. The error is why the member has
// to get the scope elsewhere.
func (f *scopes) awaitServers(ctx context.Context, scope cache.Scope, silent time.Duration) error {
	now := time.Now()
	quiet, late := now.Add(silent), now.Add(max(silent, opensWithin))
	for {
		f.mu.Lock()
		of := f.sources[scope]
		var changed <-chan struct{}
		var is *serverSource
		if of != nil {
			if of.changed == nil {
				of.changed = make(chan struct{})
			}
			changed = of.changed
		}
		if of != nil && !strings.Contains(of.fingerprint, routed) {
			is, _ = of.source.(*serverSource)
		}
		f.mu.Unlock()
		until := late
		switch {
		case of == nil:
			return nil // it begins now, and nothing of it is old
		case is != nil:
			var heard, open bool
			if heard, open, changed = is.Heard(); heard {
				return nil
			} else if open {
				until = quiet
			}
		}
		timer := time.NewTimer(time.Until(until))
		select {
		case <-changed:
		case <-timer.C:
			if until == quiet {
				return nil
			}
			return errNotHeard
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// peerStreams are the streams of other members.
type peerStreams struct {
	mu   sync.Mutex // comes last
	open map[cache.Scope]map[*func()]struct{}
}

// join has check called, which ends the stream if it has to end, whenever that may be, until leave is called. The scope
// of health watches is the zero scope.
func (p *peerStreams) join(scope cache.Scope, check func()) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open = map[cache.Scope]map[*func()]struct{}{}
	}
	if p.open[scope] == nil {
		p.open[scope] = map[*func()]struct{}{}
	}
	p.open[scope][&check] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if delete(p.open[scope], &check); len(p.open[scope]) == 0 {
			delete(p.open, scope)
		}
	}
}

// check checks the streams for a scope.
func (p *peerStreams) check(scope cache.Scope) {
	p.mu.Lock()
	checks := slices.Collect(maps.Keys(p.open[scope]))
	p.mu.Unlock()
	for _, check := range checks {
		(*check)()
	}
}

// has reports whether there are streams for a scope.
func (p *peerStreams) has(scope cache.Scope) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open[scope] != nil
}

// notHeard returns how long a scope is unreachable, false if it is reachable.
func (r *Relay) notHeard(scope cache.Scope) (time.Duration, bool) {
	since, down := r.origins.reachability.Unreachable(scope)
	return time.Since(since), down
}

// reachabilityChanged has the streams of members for a scope end if the scope remains unreachable.
func (r *Relay) reachabilityChanged(scope cache.Scope) {
	if r.fleet.Load() == nil || !r.peerStreams.has(scope) {
		return
	}
	if _, down := r.notHeard(scope); down {
		time.AfterFunc(unreachableFor, func() { r.peerStreams.check(scope) })
	}
}

// joinServed has the stream of a member for a scope end once the scope is unreachable for too long.
func (r *Relay) joinServed(ctx context.Context, scope cache.Scope) (leave func()) {
	leave = r.peerStreams.join(scope, func() {
		if since, down := r.notHeard(scope); down && since >= unreachableFor {
			downstream.End(ctx, errNotHeard)
		}
	})
	if since, down := r.notHeard(scope); down {
		time.AfterFunc(unreachableFor-since, func() { r.peerStreams.check(scope) })
	}
	return leave
}

// canServe returns why a member has to get a scope elsewhere.
func (r *Relay) canServe(ctx context.Context, scope cache.Scope) error {
	silent, unreachable := silentFor, unreachableFor
	if fleet.IsTrial(ctx) {
		silent, unreachable = silentForTrial, 0
	}
	if since, down := r.notHeard(scope); down && since >= unreachable {
		return errNotHeard
	}
	err := r.scopes.awaitServers(ctx, scope, silent)
	if since, down := r.notHeard(scope); err != nil && down && since < unreachable {
		return nil // for so short a time, the member has what this relay's clients have
	}
	return err
}

// try asks the member from which a scope is to come whether it serves the scope, if the scope has a source that works.
// It returns once the member does, or the fleet knows that it does not.
func (s *origins) try(ctx context.Context, scope cache.Scope, present *serverSource) {
	m, o := s.fleet.Load(), s.originFor(scope)
	if m == nil || o == nil || present == nil || present.state {
		return
	}
	r := s.route(scope, o)
	if r.from == nil || r.state || present.from == r.from || present.from != nil && !m.Serves(scope, present.from) {
		return
	}
	_ = m.Try(ctx, scope, r.from) // the fleet has noted the refusal
}
