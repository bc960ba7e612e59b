package collections

import (
	"maps"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// viewList is a view that is requested as a list collection: one list with the entries of
// all its collections. An entry that is inline in a collection of the view stays inline; other
// members are locators. Collections and globs within collections are expanded.
type viewList struct {
	topic cache.Key
	*setContext
	union   *union
	applied bool
}

func newViewList(r *Resolver, k cache.Key, v View) *viewList {
	n := &viewList{topic: k, setContext: r.newSetContext(k)}
	n.typeURL = strings.TrimSuffix(k.TypeURL, "Collection")
	n.asEntries = true
	n.setContext.derived = n
	n.union = newUnion(n.setContext, n)
	n.union.addAll(v.Collections)
	return n
}

func (n *viewList) key() cache.Key { return n.topic }

// winnerChanged implements sink.
func (n *viewList) winnerChanged(string, candidate, candidate, bool) { n.changed[n] = struct{}{} }

// stateChanged implements sink.
func (n *viewList) stateChanged() { n.changed[n] = struct{}{} }

func (n *viewList) appendTo(u *cache.Update) {
	is := n.union.state()
	c := cache.Change{Name: n.topic.Name}
	n.hasWithheld = n.applied && n.busy()
	switch {
	case !n.applied && is.status == cache.Requested, n.hasWithheld:
		return
	case !n.applied && is.status == cache.Failed:
		c.Err = is.err
	default:
		n.applied = true
		c.Resource, c.Partial, c.Stale = n.resource(), is.partial, is.stale
	}
	u.Changes = append(u.Changes, c)
}

// resource returns the list collection. Entries are in the order of the members' names, and
// the version is a hash, so both are the same at every relay.
func (n *viewList) resource() *cache.Resource {
	var value []byte
	names := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(n.union.members)) {
		r := n.union.members[key].winner.resource
		if r == nil {
			continue
		}
		entry := r.Value()
		if name := encodedName(entry); name != "" && names[name] {
			entry = withoutName(entry) // another collection has an entry of that name
		} else {
			names[name] = true
		}
		value = wire.AppendBytes(value, listResources, entry)
	}
	return cache.NewResource(cache.Spec{Name: n.topic.Name, TypeURL: n.topic.TypeURL, Value: value})
}

func (n *viewList) refresh() { n.union.refresh() }

// refuse does nothing: the list is made of names, and the members are other topics.
func (n *viewList) refuse(string, uint32) {}

func (n *viewList) close() { n.union.close() }
