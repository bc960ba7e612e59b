package collections

import (
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// entryNode is a derived entry: what a client is to see under a name.
type entryNode struct {
	topic  cache.Key
	follow *follow
}

func newEntryNode(r *Resolver, k cache.Key) *entryNode {
	n := &entryNode{topic: k}
	n.follow = r.follow(targetOf(k), func() { r.changed[n] = struct{}{} })
	return n
}

// targetOf is where the evaluation of a derived key begins: a name with directives is
// a URL, any other its own leaf topic.
func targetOf(k cache.Key) target {
	t := target{typeURL: k.TypeURL, params: k.Scope.Params}
	if urn.IsName(k.Name) && !k.Scope.OldStyle {
		if u, err := urn.ParseURL(k.Name); err == nil && u.String() != u.Key().Name {
			t.url = u
			return t
		}
	}
	k.Scope.Derived = ""
	t.leaf = &k
	return t
}

func (n *entryNode) key() cache.Key { return n.topic }

func (n *entryNode) close() { n.follow.close() }

func (n *entryNode) refresh() { n.follow.refresh() }

func (n *entryNode) write(u *cache.Update) {
	is := &n.follow.result
	c := cache.Change{Name: n.topic.Name, Err: is.Err}
	switch is.Status {
	case cache.Requested:
		return // what was there stays until more is known
	case cache.Present:
		c.Resource = named(n.topic.Name, is)
	case cache.Absent:
		c.Gone = true
	case cache.Failed:
	}
	u.Changes = append(u.Changes, c)
}

// named returns what was found as a resource of that name. Found under another, it
// says that name inside too, and has a version that says where it was found: two
// origins may mean different things by one version.
func named(name string, is *result) *cache.Resource {
	r := is.Resource
	if is.origin == name {
		return r
	}
	return r.Renamed(name, fmt.Sprintf("%s~%08x", r.Version(), uint32(xxhash.Sum64String(is.origin))))
}
