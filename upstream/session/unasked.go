package session

import (
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Some delta control planes (java-control-plane) take each subscription to Clusters and Listeners for a wildcard.
// They send what was not requested, and do not send it again when it is. So the relay keeps what comes unasked, up to
// a bound and for as long as the stream, and gives it to a name that is subscribed to later. The control plane
// updates it like everything else on the stream.

// The bounds of what is kept of one type.
const (
	maxUnasked      = 1000
	maxUnaskedBytes = 1 << 20
)

// unasked are the resources that were not requested.
type unasked struct {
	kept  map[string]*cache.Resource // nil as long as nothing came unasked
	bytes int
}

// put keeps a resource, if there is room, in place of the last one of its name; r may be nil.
func (k *unasked) put(name string, r *cache.Resource) {
	if last := k.kept[name]; last != nil {
		k.bytes -= len(last.Value())
		delete(k.kept, name)
	}
	if r == nil || r.DoNotCache() || r.TTL() > 0 || r.Alias() {
		return
	}
	if k.kept == nil {
		k.kept = map[string]*cache.Resource{}
	}
	if len(k.kept) < maxUnasked && k.bytes+len(r.Value()) <= maxUnaskedBytes {
		k.kept[strings.Clone(name)] = r
		k.bytes += len(r.Value())
	}
}

// keepUnasked keeps the resource of a response if it was not requested.
func (n *Names) keepUnasked(v *resourceUpdate) {
	if n.sotw || n.sets != nil || n.params != nil || v.heartbeat || n.concerns(v) || !xdstype.Of(n.typeURL).FullState {
		return
	}
	switch {
	case v.resource != nil && len(v.aliases) == 0:
		n.unasked.put(v.key, n.encode(v.resource))
	case v.gone && n.unasked.kept != nil:
		n.unasked.put(v.key, nil)
	}
}

// keepLeft keeps the resource of a name that was given up.
func (n *Names) keepLeft(sub *subscription) {
	if n.unasked.kept != nil && sub.via == "" && sub.seen > n.before {
		n.unasked.put(sub.name, sub.answer.Resource)
	}
}

// takeUnasked gives a new name the resource that came unasked.
func (n *Names) takeUnasked(sub *subscription) {
	r := n.unasked.kept[sub.name]
	if r == nil {
		return
	}
	n.unasked.put(sub.name, nil)
	n.answer(sub, cache.Change{Name: sub.name, Resource: r, Origin: n.versionOf()})
}
