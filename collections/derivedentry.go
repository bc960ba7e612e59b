package collections

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// derivedEntry is a derived entry: the resource that clients see under a name.
type derivedEntry struct {
	topic  cache.Key
	lookup *lookup
	home   string // the origin of a resource found under the entry's own name

	inside  string // the name inside, empty if it is not known how resources that refer to it write it
	queued  inInbox
	result  cache.State     // the last result of the lookup that was written
	renamed *cache.Resource // result.Resource under the entry's name
	origin  string          // of renamed
	aliasOf string          // of renamed
}

func newDerivedEntry(r *Resolver, k cache.Key) *derivedEntry {
	n := &derivedEntry{topic: k}
	start := targetOf(k)
	if start.leaf != nil {
		n.home = start.leaf.Name
	} else {
		n.home = start.url.Key().Name
		if entry, ok := start.url.Entry(); ok {
			n.home = entryName(n.home, entry)
		}
	}
	n.lookup = r.newLookup(start, nil, func() { r.changed[n] = struct{}{} })
	r.topics.WatchSpelling(k.TypeURL, k.Name, n)
	return n
}

// targetOf returns where the lookup of a derived key begins: at the URL if the name has
// directives, otherwise at the leaf topic of the same name.
func targetOf(k cache.Key) target {
	t := target{typeURL: k.TypeURL, params: k.Scope.Params, side: sideOf(k), passRedirects: k.Scope.Derived == cache.Passed}
	if urn.IsXdstp(k.Name) && !k.Scope.OldStyle {
		if u, err := urn.ParseURL(k.Name); err == nil && u.String() != u.Key().Name {
			t.url = u
			return t
		}
	}
	k.Scope.Derived = ""
	t.leaf = &k
	return t
}

func (n *derivedEntry) key() cache.Key { return n.topic }

func (n *derivedEntry) close() {
	n.lookup.resolver.topics.UnwatchSpelling(n.topic.TypeURL, n.topic.Name, n)
	n.lookup.close()
}

// Respelled implements cache.SpellingWatcher.
func (n *derivedEntry) Respelled() { n.lookup.resolver.enqueue(n, &n.queued).Wake() }

// process has the resource written again if the name inside it has to be another.
func (n *derivedEntry) process(r *Resolver) {
	n.queued.Store(false)
	if r.derived[n.topic] == n && n.lookup.result.Status == cache.Present && n.inside != r.topics.Spelling(n.topic.TypeURL, n.topic.Name) {
		r.changed[n] = struct{}{}
	}
}

func (n *derivedEntry) refresh() { n.lookup.refresh() }

func (n *derivedEntry) refuse(_ string, sent uint32) { n.lookup.refuse(sent) }

func (n *derivedEntry) appendTo(u *cache.Update) {
	is := &n.lookup.result
	c := cache.Change{Name: n.topic.Name, Err: is.Err, Stale: is.Stale}
	switch is.Status {
	case cache.Requested:
		return // clients keep their resource until the result is known
	case cache.Present:
		onlyErr := is.Err != nil && n.result.Status == cache.Present && is.Heartbeats == n.result.Heartbeats
		inside := n.lookup.resolver.topics.Spelling(n.topic.TypeURL, n.topic.Name)
		if is.Resource != n.result.Resource || is.origin != n.origin || is.aliasOf != n.aliasOf || inside != n.inside {
			n.inside = inside
			n.renamed, n.origin, n.aliasOf, onlyErr = named(n.topic.Name, inside, n.home, is), is.origin, is.aliasOf, false
		}
		if !onlyErr { // a new error is no heartbeat
			c.Resource = n.renamed
		}
	case cache.Absent:
		c.Gone = true
	case cache.Failed:
	}
	n.result = is.State
	u.Changes = append(u.Changes, c)
}
