package relay

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/collections"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// The facts about authorities and views that collections/ needs.

// derivedSource is the source of derived topics, and its way to the cache.
type derivedSource struct {
	*collections.Resolver
	feed *feed.Feed
}

// Stop implements cache.Source.
func (s derivedSource) Stop(k cache.Key) {
	s.Resolver.Stop(k)
	s.feed.Stop(k)
}

// leafNames implements collections.Names.
type leafNames struct {
	newest  func() *generation
	origins *origins
}

// Key implements collections.Names.
func (n leafNames) Key(typeURL, name string) (cache.Key, error) {
	k, err := naming.XdstpKey(n.newest().router.Leaf, typeURL, name)
	var why *downstream.RefusedError
	if errors.As(err, &why) && (why.Refusal == downstream.RefusedAuthority || why.Refusal == downstream.RefusedParameter) {
		// The name may exist, so clients keep the last good resource.
		return cache.Key{}, &cache.Error{Code: codes.Unavailable, Message: why.Client.Message}
	}
	if err == nil && k.TypeURL != typeURL {
		// Clients may request a list collection with the type of its members, but a collection cannot be a member.
		return cache.Key{}, &cache.Error{
			Code:    codes.NotFound,
			Message: fmt.Sprintf("xdstp name %q is a list collection, not a %s", name, xdstype.Message(typeURL)),
		}
	}
	return k, err
}

// Sources implements downstream.Views.
func (n leafNames) Sources(view cache.Scope) []cache.Scope {
	return n.newest().router.ViewSources(view)
}

// Origin implements downstream.Views. The name of a member that its view renames does not show whose it is.
func (n leafNames) Origin(member cache.Key) (cache.Key, bool) {
	g := n.newest()
	for i := range g.cfg.Views {
		if g.cfg.Views[i].Rename && g.router.ViewScope(i) == member.Scope.Derived {
			return cache.Key{}, false
		}
	}
	k, err := n.Key(member.TypeURL, member.Name)
	return k, err == nil
}

// Policy implements collections.Names.
func (n leafNames) Policy(authority string) collections.Policy {
	a, ok := n.newest().router.Source(cache.Scope{Authority: authority})
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
	return n.origins.reachability.Unreachable(scope)
}

// PassesOver implements collections.Names.
func (n leafNames) PassesOver(k cache.Key, since time.Time) bool {
	f := n.origins.streamsOf(k.Scope.Accepted())
	return f != nil && f.NamesAnswered(k.TypeURL, since)
}

// Speaks reports whether every server of an authority, or its directory, also serves the authority other: see
// collections.Options.SpeaksFor.
func (n leafNames) Speaks(name, other string) bool {
	router := n.newest().router
	a, ok := router.Source(cache.Scope{Authority: name})
	b, known := router.Source(cache.Scope{Authority: other})
	switch {
	case !ok || !known:
		return false
	case a.Directory != "":
		return a.Directory == b.Directory
	}
	return !slices.ContainsFunc(a.Servers, func(s configs.Server) bool { return !serves(peerOf(&s), b) })
}

// viewsOf returns the views, by the scopes of their topics.
func viewsOf(g *generation) map[string]collections.View {
	views := map[string]collections.View{}
	for i, v := range g.cfg.Views {
		view := collections.View{Rename: v.Rename}
		for _, collection := range v.Collections {
			u, _ := urn.ParseURL(collection) // the configuration was checked
			view.Collections = append(view.Collections, u)
		}
		views[g.router.ViewScope(i)] = view
	}
	return views
}
