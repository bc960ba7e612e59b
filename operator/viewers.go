package operator

import (
	"context"
	"iter"
	"net/http"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/csds"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/partition"
)

// CSDS, and who sees what. The operator sees everything but secrets. A client sees the streams of its own identity,
// and of these what the current rules allow it.

// operatorView shows everything but secrets.
type operatorView struct {
	observer *Observer
	places   *downstream.Places
}

// Place implements csds.Viewer.
func (v operatorView) Place(ctx context.Context) (*downstream.Place, error) {
	return v.places.TakeOperators(ctx)
}

// Clients implements csds.Viewer.
func (v operatorView) Clients() iter.Seq2[*downstream.Inspected, func(*downstream.Held) bool] {
	return func(yield func(*downstream.Inspected, func(*downstream.Held) bool) bool) {
		for c := range v.observer.Server.Inspect(0) {
			if !yield(c, func(*downstream.Held) bool { return true }) {
				return
			}
		}
	}
}

// Upstream implements csds.Viewer.
func (v operatorView) Upstream() iter.Seq[downstream.Held] { return v.observer.Upstream(nil) }

// clientView shows what one client may see.
type clientView struct {
	observer         *Observer
	settings         *Settings
	id               *identity.Identity
	secretsForAnyone bool
	places           *downstream.Places
}

// Place implements csds.Viewer.
func (v *clientView) Place(ctx context.Context) (*downstream.Place, error) {
	return v.observer.Server.TakePlace(ctx, v.places, v.id)
}

// Clients implements csds.Viewer.
func (v *clientView) Clients() iter.Seq2[*downstream.Inspected, func(*downstream.Held) bool] {
	return func(yield func(*downstream.Inspected, func(*downstream.Held) bool) bool) {
		for c := range v.observer.Server.Inspect(0) {
			if c.Node == nil || !sameIdentity(c.Identity, v.id) {
				continue
			}
			if !yield(c, v.may(c.Node)) {
				return
			}
		}
	}
}

// may returns a function that reports whether the viewer may see a resource of a client with this Node: whether it
// may now request the name with that Node, and may have the resource by its own name.
func (v *clientView) may(node *corev3.Node) func(*downstream.Held) bool {
	names := v.settings.Rights.For(downstream.Client{Node: node, Identity: v.id, SecretsForAnyone: v.secretsForAnyone})
	return func(h *downstream.Held) bool {
		k, err := names.Meaning(h.TypeURL, h.Subscription)
		if err != nil {
			return false
		}
		if names.ClientRights == nil {
			return true
		}
		if names.ClientRights.May(k) != nil || names.ClientRights.BypassesView(k, names.Views) != nil {
			return false
		}
		return names.ClientRights.MayHaveOwnOf(k.Key, h)
	}
}

// Upstream implements csds.Viewer. It shows old-style names only of the partitions that streams of the viewer's
// identity use, because an expression may put other identities into other partitions. If there are rules, it hides
// every name that a view matches: for some clients the rules allow only the view, and which clients these are depends
// on their Nodes.
func (v *clientView) Upstream() iter.Seq[downstream.Held] {
	rights := v.settings.Rights.Of(v.id, v.secretsForAnyone)
	var partitions map[cache.Scope]bool
	all := v.observer.Upstream(func(k cache.Key) bool {
		if k.Scope.OldStyle {
			if partitions == nil {
				partitions = v.partitions()
			}
			if !partitions[leafPartition(k.Scope)] {
				return false
			}
		}
		return rights == nil || rights.May(naming.Requested{Key: k}) == nil && rights.BypassesView(naming.Requested{Key: k}, anyView) == nil
	})
	return func(yield func(downstream.Held) bool) {
		for h := range all {
			if rights != nil && !rights.MayHaveOwnOf(h.Key, &h) {
				continue
			}
			if !yield(h) {
				return
			}
		}
	}
}

// anyView matches each view.
func anyView(int) (bool, error) { return true, nil }

// partitions returns the partitions of old-style names that the streams of the viewer's identity use.
func (v *clientView) partitions() map[cache.Scope]bool {
	used := map[cache.Scope]bool{}
	for c := range v.observer.Server.Inspect(0) {
		if !sameIdentity(c.Identity, v.id) {
			continue
		}
		for _, scope := range c.Scopes() {
			used[leafPartition(scope)] = true
		}
	}
	return used
}

// leafPartition returns the partition of a scope, also of a scope of derived topics.
func leafPartition(scope cache.Scope) cache.Scope { return partition.Of(scope.Accepted()) }

// sameIdentity reports whether two clients have proven the same identity. Clients that have proven nothing share one
// identity.
func sameIdentity(a, b *identity.Identity) bool {
	if a == nil {
		a = identity.Anonymous(nil)
	}
	if b == nil {
		b = identity.Anonymous(nil)
	}
	return a.Key() == b.Key()
}

// ClientCSDS returns the CSDS service for the clients of a listener.
func (r *Observer) ClientCSDS(d *downstream.Door) *csds.Service {
	places := csds.Places()
	return csds.New(r.ownNode, func(ctx context.Context) (csds.Viewer, error) {
		if !r.givesCSDS(d) {
			return nil, status.Error(codes.Unimplemented, "the listener does not serve CSDS any more (csds)")
		}
		id, secretsForAnyone, err := r.Server.Caller(ctx, d)
		if err != nil {
			return nil, err
		}
		return &clientView{r, r.now(), id, secretsForAnyone, places}, nil
	})
}

// givesCSDS reports whether the current configuration has CSDS for the clients of a listener: connections from before
// a reload stay open. A listener that drains because the configuration does not have it any more serves as before.
func (r *Observer) givesCSDS(d *downstream.Door) bool {
	for _, l := range r.Process.Listeners() {
		if l.Door == d {
			return l.CSDS
		}
	}
	return true
}

func (r *Observer) ownNode() *corev3.Node { return r.now().Node }

// operatorGRPC returns the gRPC services of the admin listener.
func (r *Observer) operatorGRPC() http.Handler {
	const mostRequest = 64 << 10
	g := grpc.NewServer(grpc.MaxRecvMsgSize(mostRequest))
	operator := operatorView{r, csds.OperatorsPlaces()}
	csds.New(r.ownNode, func(context.Context) (csds.Viewer, error) { return operator, nil }).Register(g)
	healthpb.RegisterHealthServer(g, r.Health)
	reflection.Register(g)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// A stream may stay open, and its client may be slow.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		g.ServeHTTP(w, req)
	})
}
