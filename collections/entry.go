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
	home   string // the origin of a resource that is the name's own

	written cache.State     // as it was found
	made    *cache.Resource // of written.Resource
	origin  string          // of it
}

func newEntryNode(r *Resolver, k cache.Key) *entryNode {
	n := &entryNode{topic: k}
	start := targetOf(k)
	if start.leaf != nil {
		n.home = start.leaf.Name
	} else {
		n.home = start.url.Key().Name
		if entry, ok := start.url.Entry(); ok {
			n.home = entryName(n.home, entry)
		}
	}
	n.follow = r.follow(start, nil, func() { r.changed[n] = struct{}{} })
	return n
}

// targetOf is where the evaluation of a derived key begins: a name with directives is
// a URL, any other its own leaf topic.
func targetOf(k cache.Key) target {
	t := target{typeURL: k.TypeURL, params: k.Scope.Params, passes: k.Scope.Derived == cache.Passed}
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
		onlyErr := is.Err != nil && n.written.Status == cache.Present && is.Beats == n.written.Beats
		if is.Resource != n.written.Resource || is.origin != n.origin {
			n.made, n.origin, onlyErr = named(n.topic.Name, n.home, is), is.origin, false
		}
		if !onlyErr { // which is no heartbeat
			c.Resource = n.made
		}
	case cache.Absent:
		c.Gone = true
	case cache.Failed:
	}
	n.written = is.State
	u.Changes = append(u.Changes, c)
}

// named returns what was found as a resource of that name. If it was not at home it
// has a version that says where it was found: two origins may mean different things
// by one version.
func named(name, home string, is *result) *cache.Resource {
	r := is.Resource
	version := r.Version()
	switch is.origin {
	case name:
		return r
	case home:
	default:
		version = fmt.Sprintf("%s~%08x", version, uint32(xxhash.Sum64String(is.origin)))
	}
	return r.Renamed(name, version)
}
