package collections

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/cache"
)

// listNode is a view that is asked for as a list collection: the entries of all of
// them in one. Its members are located, or inline where they were inline in a
// collection of the view; collections in those are expanded, and globs too.
type listNode struct {
	topic cache.Key
	*setting
	union *union
	told  bool
}

func newListNode(r *Resolver, k cache.Key, v View) *listNode {
	n := &listNode{topic: k, setting: r.newSetting(k)}
	n.typeURL = strings.TrimSuffix(k.TypeURL, "Collection")
	n.listing = true
	n.setting.node = n
	n.union = newUnion(n.setting, n)
	n.union.addAll(v.Collections)
	return n
}

func (n *listNode) key() cache.Key { return n.topic }

// elected implements sink.
func (n *listNode) elected(string, offer, offer, bool) { n.changed[n] = struct{}{} }

// turned implements sink.
func (n *listNode) turned() { n.changed[n] = struct{}{} }

func (n *listNode) write(u *cache.Update) {
	is := n.union.condition()
	c := cache.Change{Name: n.topic.Name}
	n.withholds = n.told && n.busy()
	switch {
	case !n.told && is.status == cache.Requested, n.withholds:
		return
	case !n.told && is.status == cache.Failed:
		c.Err = is.err
	default:
		n.told = true
		c.Resource, c.Partial = n.resource(), is.partial
	}
	u.Changes = append(u.Changes, c)
}

// resource is the list collection, in the order of the members' names: that is the
// same wherever and in whatever order they came, and so is the version, which is a
// hash.
func (n *listNode) resource() *cache.Resource {
	var value []byte
	names := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(n.union.members)) {
		r := n.union.members[key].elected.resource
		if r == nil {
			continue
		}
		entry := r.Value()
		if name := writtenName(entry); name != "" && names[name] {
			entry = anonymous(entry) // two collections may have entries of one name
		} else {
			names[name] = true
		}
		value = protowire.AppendTag(value, listResources, protowire.BytesType)
		value = protowire.AppendBytes(value, entry)
	}
	return cache.NewResource(cache.Spec{Name: n.topic.Name, TypeURL: n.topic.TypeURL, Value: value})
}

func (n *listNode) refresh() { n.union.refresh() }

func (n *listNode) close() { n.union.close() }
