package relay

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/collections"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// Derived topics: what collections/ needs to know of authorities, and how derived topics
// start and stop beside the others.

// leafNames implements collections.Names.
type leafNames struct {
	router       *authority.Router
	reachability *failover.Reachability
}

// Key implements collections.Names.
func (n leafNames) Key(typeURL, name string) (cache.Key, error) {
	k, err := xdstpKey(n.router.Leaf, typeURL, name)
	var why *downstream.RefusedError
	if errors.As(err, &why) && (why.Refusal == downstream.RefusedAuthority || why.Refusal == downstream.RefusedParameter) {
		// It may well exist: who has what it was before keeps it.
		return cache.Key{}, &cache.Error{Code: codes.Unavailable, Message: why.Client.Message}
	}
	if err == nil && k.TypeURL != typeURL {
		// What clients may say of a list collection is nothing that takes the place of
		// one of its members.
		return cache.Key{}, &cache.Error{
			Code:    codes.NotFound,
			Message: fmt.Sprintf("xdstp name %q is a list collection, and no %s", name, xdstype.Message(typeURL)),
		}
	}
	return k, err
}

// Policy implements collections.Names.
func (n leafNames) Policy(authority string) collections.Policy {
	a, ok := n.router.Source(cache.Scope{Authority: authority})
	if !ok {
		return collections.Policy{}
	}
	return collections.Policy{
		Unreachable: a.Failover.Policy == configs.PolicyUnreachable,
		Grace:       a.Failover.Grace,
		Hysteresis:  a.Failover.Hysteresis,
		NotFound:    a.Failover.NotFound,
	}
}

// Unreachable implements collections.Names.
func (n leafNames) Unreachable(scope cache.Scope) (since time.Time, down bool) {
	return n.reachability.Unreachable(scope)
}

// viewsOf are the views by the scopes of their topics.
func viewsOf(cfg *configs.Config) map[string]collections.View {
	views := map[string]collections.View{}
	for i, v := range cfg.Views {
		view := collections.View{Rename: v.Rename}
		for _, collection := range v.Collections {
			u, _ := urn.ParseURL(collection) // the configuration was checked
			view.Collections = append(view.Collections, u)
		}
		views[authority.ViewScope(i)] = view
	}
	return views
}

// startDerived begins a derived topic. One of old-style names stands for clients
// with a Node until it ends, which may be after they have gone: its leaf topics are
// to be asked for with that Node whenever they are asked for.
func (f *scopes) startDerived(k cache.Key) {
	if k.Scope.OldStyle {
		scope := clientsOf(k.Scope)
		if f.nodes[scope] == nil { // it is a directory's, which is sent no Node
			f.nodes[scope] = &scopeNode{}
		}
		f.nodes[scope].clients++
	}
	f.derived.Start(k)
}

// stopDerived ends a derived topic.
func (f *scopes) stopDerived(k cache.Key) {
	f.derived.Stop(k)
	if k.Scope.OldStyle {
		f.leaveLocked(clientsOf(k.Scope))
	}
}

// clientsOf is the scope that clients join whose names are in a scope.
func clientsOf(scope cache.Scope) cache.Scope {
	scope.Derived = ""
	return partitionOf(scope)
}
