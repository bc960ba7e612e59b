package naming

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/partition"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// Names maps the names that one client requests to topics. It implements
// downstream.Names. It is not safe for concurrent use.
type Names struct {
	Router     *authority.Router
	Generation uint64
	Nodes      *partition.Nodes
	Client     configs.Client
	Log        *slog.Logger
	// Views matches the views that are for the client.
	Views authority.ViewMatcher
	// ClientRights are the rights of the client, nil if it may have everything.
	ClientRights *ClientRights
	// oldStyle has the scope of the old-style names of each type, computed once. first is the first of them: very
	// many clients have streams of only one type.
	oldStyle []*oldStyleScope
	one      [1]*oldStyleScope // room for oldStyle
	first    oldStyleScope
	// logged has a bit for each reason for which a refusal was logged for this client. Lines limits these log lines
	// for all clients together; nil: none.
	logged uint16
	Lines  *loglines.Shared
	// Relay is nil unless the client is a relay.
	Relay *RelayClient
	// hashes are the hashes of the client's Node, if hashed.
	hashes partition.Hashes
	hashed bool
}

// For returns what the names of a client mean, and which of them it may have. It is for questions: Meaning and Find leave
// no trace of the client, and no refusal is logged.
func (r *Rights) For(c downstream.Client) *Names {
	asks := configs.Client{Node: c.Node, Identity: c.Identity}
	return &Names{Router: r.router, Client: asks, Views: r.router.ViewMatcher(asks), ClientRights: r.Of(c.Identity, c.SecretsForAnyone)}
}

// RelayClient is what belongs to a client that is a relay.
type RelayClient struct {
	// through are the relays between the client and this relay. chains learns of them for each scope that the client
	// uses.
	through chain.Chain
	chains  *chain.Table[cache.Scope]
	end     func(error) // ends the client's stream
	used    map[cache.Scope]usedScope
	loop    error // see Loop
}

// NewRelayClient returns what belongs to a client that is a relay.
func NewRelayClient(c downstream.Client, chains *chain.Table[cache.Scope]) *RelayClient {
	return &RelayClient{through: c.Through, chains: chains, end: c.End, used: map[cache.Scope]usedScope{}}
}

// usedScope is a scope that the client uses.
type usedScope struct {
	uses   int
	member *chain.Member
}

type oldStyleScope struct {
	typeURL   string
	partition authority.Partition
	err       error
	used      bool // the client has received a topic of the scope
	joined    bool // the client has joined the partition: see partition.Nodes.Join
	member    partition.Member
}

// Key implements downstream.Names. Names that the client may not have leave no trace: its Node does not become a
// partition's Node.
func (n *Names) Key(typeURL, name string) (cache.Key, error) {
	k, err := n.Meaning(typeURL, name)
	if err != nil {
		return k.Key, err
	}
	if n.ClientRights != nil {
		if why := cmp.Or(n.ClientRights.May(k), n.ClientRights.BypassesView(k, n.Views)); why != nil {
			n.logRefusal(typeURL, name, why, why)
			return cache.Key{}, why
		}
	}
	n.use(k)
	return k.Key, nil
}

// Meaning returns the topic of a name.
func (n *Names) Meaning(typeURL, name string) (Requested, error) {
	if k, ok := n.Router.View(typeURL, name, n.Views); ok {
		return Requested{Key: k, view: true}, nil
	}
	if !urn.IsXdstp(name) {
		s := n.scope(typeURL, name)
		return Requested{Key: cache.Key{Scope: s.partition.Scope, TypeURL: typeURL, Name: name}, Plain: true, of: s}, s.err
	}
	k, err := XdstpKey(n.Router.Xdstp, typeURL, name)
	unspelled, plain := false, err == nil && k.Scope.Derived == ""
	if err != nil || !urn.HasID(name) {
		if to, ok := n.Router.Opaque(name); ok {
			k, err = cache.Key{Scope: to.Scope, TypeURL: typeURL, Name: to.Key.Name}, nil
			_, bad := urn.KeyOf(name)
			unspelled, plain = bad != nil, false
		}
	}
	if err != nil {
		n.logRefusal(typeURL, name, err, err)
	}
	return Requested{Key: k, Plain: plain, unspelled: unspelled}, err
}

// use notes that the client receives the topic of a name.
func (n *Names) use(k Requested) {
	switch {
	case k.view && n.Relay != nil:
		// The configuration determines the sources. The client uses them until it leaves.
		for _, of := range n.Router.ViewSources(k.Scope) {
			n.Enter(of)
		}
	case k.of != nil && !k.of.used:
		k.of.used, k.of.joined = true, n.joinPartition(k.of)
	}
}

// Rights implements downstream.Restricted.
func (n *Names) Rights() downstream.Rights {
	if n.ClientRights == nil {
		return nil
	}
	return n.ClientRights
}

// XdstpKey returns the topic of an xdstp name that a client requests with a type.
func XdstpKey(route func(string) (authority.Route, error), typeURL, name string) (cache.Key, error) {
	to, err := route(name)
	if err != nil {
		return cache.Key{}, refused(refusalOf(err), codes.NotFound, err)
	}
	requested := xdstype.Message(typeURL)
	if !to.Under(requested) {
		return cache.Key{}, refused(downstream.RefusedType, codes.NotFound,
			fmt.Errorf("xdstp name %q is of type %s, but was requested as %s", name, to.Key.Type, requested))
	}
	if requested != to.Key.Type {
		// A client may request a list collection with the type of its members. It is the same topic.
		typeURL = strings.TrimSuffix(typeURL, requested) + to.Key.Type
	}
	return cache.Key{Scope: to.Scope, TypeURL: typeURL, Name: to.Key.Name}, nil
}

// Enter implements downstream.ScopeUser. If the client is a relay, the scope's streams
// upstream announce it and the relays behind it.
func (n *Names) Enter(scope cache.Scope) {
	if n.Relay == nil {
		return // this scope's streams announce no relays
	}
	n.Relay.Enter(partition.Of(scope))
}

// Enter has the scope's streams upstream announce the client and the relays behind it.
func (r *RelayClient) Enter(scope cache.Scope) {
	j := r.used[scope]
	if j.uses++; j.uses == 1 {
		var err error
		j.member, err = r.chains.Join(scope, r.through, r.end)
		r.loop = cmp.Or(r.loop, err)
	}
	r.used[scope] = j
}

// Loop implements downstream.ScopeUser.
func (n *Names) Loop() error {
	if n.Relay == nil {
		return nil
	}
	return n.Relay.Loop()
}

// Loop returns the loop that the client is part of, nil if there is none.
func (r *RelayClient) Loop() error { return r.loop }

// Leave implements downstream.ScopeUser.
func (n *Names) Leave(scope cache.Scope) {
	if n.Relay != nil {
		n.Relay.Leave(partition.Of(scope))
	}
}

// Leave takes back an Enter.
func (r *RelayClient) Leave(scope cache.Scope) {
	j := r.used[scope]
	if j.uses--; j.uses > 0 {
		r.used[scope] = j
		return
	}
	delete(r.used, scope)
	r.chains.Leave(scope, j.member)
}

// scope returns the scope of all old-style names of a type. name is the first of them.
func (n *Names) scope(typeURL, name string) *oldStyleScope {
	for _, s := range n.oldStyle {
		if s.typeURL == typeURL {
			return s
		}
	}
	s := &n.first
	if len(n.oldStyle) > 0 {
		s = new(oldStyleScope)
	}
	if n.oldStyle == nil {
		n.oldStyle = n.one[:0]
	}
	s.typeURL = typeURL
	if s.partition, s.err = n.Router.Partition(n.Client, typeURL); s.err != nil {
		// Whether the names exist is unknown, so clients must not get NOT_FOUND.
		why := s.err
		s.err = oldStyleRefused(why)
		n.logRefusal(typeURL, name, s.err, why)
	}
	n.oldStyle = append(n.oldStyle, s)
	return s
}

// Partition returns the partition of the client's old-style names of a type.
func (n *Names) Partition(typeURL string) (authority.Partition, error) {
	s := n.scope(typeURL, "")
	return s.partition, s.err
}

// joinPartition joins the client to its partition: the Node of the first client becomes the partition's Node
// upstream. It returns false if the partition's resources come from a directory. It logs a warning if the client's
// Node differs from the first one, because the client may get resources that are meant for others.
func (n *Names) joinPartition(of *oldStyleScope) bool {
	p := of.partition
	if a, _ := n.Router.Source(p.Scope); a.Directory != "" {
		return false
	}
	if !n.hashed {
		n.hashed, n.hashes = true, partition.HashesOf(n.Client.Node)
	}
	of.member.ID = n.Client.Node.GetId()
	of.member.Node = func() *corev3.Node { return partition.NodeFor(of.partition.Upstream, n.Client.Node) }
	differ, first := n.Nodes.Join(p.Scope, partition.Client{
		Rule: p.Rule, Generation: n.Generation, Upstream: p.Upstream, Hashes: n.hashes, Member: &of.member,
		OwnTool: n.Client.Node.GetId() == client.NodeID || slices.Contains(n.Client.Node.GetClientFeatures(), client.ErrorsAlone),
	})
	if differ != 0 {
		n.Log.Warn("clients of one partition have Nodes that differ, and are served the same: see /authorities and docs/partitions.md",
			"rule", fmt.Sprintf("old_style_names[%d]", p.Rule), "authority", p.Scope.Authority, "partition", p.Scope.Partition,
			"differ_in", strings.Join(differ.Names(), ","), "client", n.Client.Node.GetId(), "first", first)
	}
	return true
}

// Close implements downstream.Names.
func (n *Names) Close() {
	for _, s := range n.oldStyle {
		if s.joined {
			n.Nodes.Leave(s.partition.Scope, &s.member)
		}
	}
	if n.Relay != nil {
		n.Relay.Close()
	}
}

// Close leaves all scopes.
func (r *RelayClient) Close() {
	for scope, j := range r.used {
		r.chains.Leave(scope, j.member)
	}
}

// logRefusal logs that a name was refused, once for each reason.
func (n *Names) logRefusal(typeURL, name string, refused, why error) {
	var as *downstream.RefusedError
	if n.Lines == nil || !errors.As(refused, &as) || n.logged&(1<<as.Refusal) != 0 {
		return
	}
	n.logged |= 1 << as.Refusal
	if log, ok := n.Lines.Next(n.Log); ok {
		log.Warn("client's names cannot be served", "client", n.Client.Node.GetId(), "type_url", typeURL,
			"name", name, "refused", as.Refusal.String(), "reason", why.Error())
	}
}

// Find returns the topic of a name, or why the client does not get it. Unlike Key, it leaves no trace.
func (n *Names) Find(typeURL, name string) (cache.Key, error) {
	k, err := n.Meaning(typeURL, name)
	if err != nil {
		return cache.Key{}, err
	}
	if n.ClientRights != nil {
		if why := cmp.Or(n.ClientRights.May(k), n.ClientRights.BypassesView(k, n.Views)); why != nil {
			return cache.Key{}, why
		}
	}
	return k.Key, nil
}
