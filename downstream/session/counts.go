package session

import (
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// keys returns the keys of the subscriptions that a request is about.
func keys(names []string, locators []*discoveryv3.ResourceLocator) []string {
	if len(locators) == 0 {
		return names
	}
	all := slices.Clone(names)
	for _, l := range locators {
		a := refByLocator(l)
		if a.name == cache.Wildcard {
			a = refByName(a.name)
		}
		all = append(all, a.key())
	}
	return all
}

// SubscribedWith returns how many names the session will have after the request. A result of at most enough may be too
// high.
func (d *Delta) SubscribedWith(req *discoveryv3.DeltaDiscoveryRequest, enough int) int {
	subscribe := keys(req.GetResourceNamesSubscribe(), req.GetResourceLocatorsSubscribe())
	if n := d.Subscribed() + len(subscribe); n <= enough {
		return n
	}
	there := func(key string) bool { return d.named.get(key) != nil || d.globs[key] != nil }
	added := distinct(subscribe)
	n := d.Subscribed()
	for name := range distinct(keys(req.GetResourceNamesUnsubscribe(), req.GetResourceLocatorsUnsubscribe())) {
		if _, again := added[name]; !again && there(name) {
			n--
		}
	}
	for name := range added {
		if !there(name) {
			n++
		}
	}
	return n
}

// SubscribedWith is Delta.SubscribedWith for SotW.
func (*SotW) SubscribedWith(req *discoveryv3.DiscoveryRequest, enough int) int {
	names := keys(req.GetResourceNames(), req.GetResourceLocators())
	if len(names) <= enough {
		return len(names)
	}
	return len(distinct(names))
}

// distinct returns the names without repetitions and without the wildcard.
func distinct(names []string) map[string]struct{} {
	set := make(map[string]struct{}, len(names))
	for _, name := range names {
		if name != cache.Wildcard {
			set[name] = struct{}{}
		}
	}
	return set
}
