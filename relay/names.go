package relay

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/urn"
)

// clientNames gives one client's names their meaning. It implements
// downstream.Names.
type clientNames struct {
	router *authority.Router
	scopes *scopes
	node   *corev3.Node
	log    *slog.Logger
	// views says which views are for the client.
	views authority.ViewMatcher
	// oldStyle has the scopes of old-style names, which depend on nothing but their
	// type, and are worked out once.
	oldStyle []oldStyleScope
	// told are the reasons for which it was refused names that the operator was told of, a
	// bit for each; lines bounds that for all clients together.
	told  uint16
	lines *loglines.Shared
	// through is the relays through which it asks, and chains has them for the
	// scopes that it uses.
	through chain.Chain
	chains  *chain.Table[cache.Scope]
	joined  map[cache.Scope]joinedScope
	// marks are those of its Node, from when they are needed.
	marks *nodeMarks
}

// joinedScope is a scope that a client uses which is a relay.
type joinedScope struct {
	uses  int
	known chain.Chain // what of its relays the table has
}

type oldStyleScope struct {
	typeURL string
	scope   cache.Scope
	err     error
	joined  bool // the scopes know that the client uses it
}

// Key implements downstream.Names.
func (n *clientNames) Key(typeURL, name string) (cache.Key, error) {
	if k, ok := n.router.View(typeURL, name, n.views); ok {
		if n.through.Relay {
			// They are configured, and stay joined until the client goes.
			for _, of := range n.router.ViewSources(k.Scope) {
				n.Enter(of)
			}
		}
		return k, nil
	}
	if !urn.IsName(name) {
		scope, err := n.scope(typeURL, name)
		return cache.Key{Scope: scope, TypeURL: typeURL, Name: name}, err
	}
	k, err := xdstpKey(n.router.Xdstp, typeURL, name)
	if err != nil || !urn.HasID(name) {
		if to, ok := n.router.Opaque(name); ok {
			k, err = cache.Key{Scope: to.Scope, TypeURL: typeURL, Name: to.Key.Name}, nil
		}
	}
	if err != nil {
		n.tell(typeURL, name, err, err)
	}
	return k, err
}

// xdstpKey is the key of an xdstp name that is asked for as typeURL.
func xdstpKey(route func(string) (authority.Route, error), typeURL, name string) (cache.Key, error) {
	to, err := route(name)
	if err != nil {
		return cache.Key{}, refused(refusalOf(err), codes.NotFound, err)
	}
	asked := typeURL[strings.LastIndexByte(typeURL, '/')+1:]
	if !to.Under(asked) {
		return cache.Key{}, refused(downstream.RefusedType, codes.NotFound,
			fmt.Errorf("xdstp name %q is of type %s, and was asked for as %s", name, to.Key.Type, asked))
	}
	if asked != to.Key.Type {
		// A list collection that is asked for under its members' type is the same one.
		typeURL = strings.TrimSuffix(typeURL, asked) + to.Key.Type
	}
	return cache.Key{Scope: to.Scope, TypeURL: typeURL, Name: to.Key.Name}, nil
}

// Enter implements downstream.ScopeUser: what the scope is asked for is announced as asked
// by the relays that the client asks through.
func (n *clientNames) Enter(scope cache.Scope) {
	if !n.through.Relay {
		return // it makes no difference
	}
	scope = partitionOf(scope)
	j := n.joined[scope]
	if j.uses++; j.uses == 1 {
		j.known = n.chains.Join(scope, n.through)
	}
	if n.joined == nil {
		n.joined = map[cache.Scope]joinedScope{}
	}
	n.joined[scope] = j
}

// Leave implements downstream.ScopeUser.
func (n *clientNames) Leave(scope cache.Scope) {
	if !n.through.Relay {
		return
	}
	scope = partitionOf(scope)
	j := n.joined[scope]
	if j.uses--; j.uses > 0 {
		n.joined[scope] = j
		return
	}
	delete(n.joined, scope)
	n.chains.Leave(scope, j.known)
}

// scope returns the scope of all old-style names of a type, of which name is the first.
func (n *clientNames) scope(typeURL, name string) (cache.Scope, error) {
	for i := range n.oldStyle {
		if s := &n.oldStyle[i]; s.typeURL == typeURL {
			return s.scope, s.err
		}
	}
	s := oldStyleScope{typeURL: typeURL}
	p, err := n.router.Partition(n.node, typeURL)
	if s.scope, s.err = p.Scope, err; s.err != nil {
		// Whether the names exist is not known, so that is not what clients are
		// told.
		s.err = oldStyleRefused(err)
		n.tell(typeURL, name, s.err, err)
	} else {
		s.joined = n.joinPartition(p)
	}
	n.oldStyle = append(n.oldStyle, s)
	return s.scope, s.err
}

// joinPartition has the client's Node stand for its partition upstream, if it is the first,
// and says whether control planes are asked at all. Where its Node differs from that of the
// first the operator is told, as the client may be served what is meant for another.
func (n *clientNames) joinPartition(p authority.Partition) bool {
	if a, _ := n.router.Source(p.Scope); a.Directory != "" {
		return false
	}
	if n.marks == nil {
		m := marksOf(n.node)
		n.marks = &m
	}
	differ, first := n.scopes.join(p.Scope, partitionClient{
		rule: p.Rule, marks: *n.marks, looks: n.node.GetId() == client.NodeID || slices.Contains(n.node.GetClientFeatures(), client.ErrorsAlone),
		node: func() *corev3.Node { return nodeFor(p.Upstream, n.node) },
	})
	if differ != 0 {
		n.log.Warn("clients of one partition have Nodes that differ, and are served the same: see /authorities and docs/partitions.md",
			"rule", fmt.Sprintf("old_style_names[%d]", p.Rule), "authority", p.Scope.Authority, "partition", p.Scope.Partition,
			"differ_in", strings.Join(differ.fields(), ","), "client", n.node.GetId(), "first", first)
	}
	return true
}

// Close implements downstream.Names.
func (n *clientNames) Close() {
	for _, s := range n.oldStyle {
		if s.joined {
			n.scopes.leave(s.scope)
		}
	}
	for scope, j := range n.joined {
		n.chains.Leave(scope, j.known)
	}
}
