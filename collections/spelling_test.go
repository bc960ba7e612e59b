package collections

import (
	"strings"
	"testing"
	"testing/synctest"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// The name inside of what is resolved follows the resource that refers to it, also if that comes later, changes, or goes.
func TestTheNameInsideFollowsWhatRefersToIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newStepped(t, Options{})
		defer o.close()
		begins := "xdstp://a/" + xdstype.Message(clusterType) + "/"
		redirect, alternative, entry := long("a/r?a=2&b=1"), long("a/gone#alt=a/y"), long("a:l#entry=e")
		o.says[redirect] = cache.Change{Name: redirect, Resource: cache.NewResource(cache.Spec{
			Name: redirect, Version: "1", TypeURL: xdstype.Locator, Redirect: long("a/y"), Value: mustMarshal(t, locator(t, long("a/y"))),
		})}
		o.says[long("a/gone")] = cache.Change{Name: long("a/gone"), Gone: true}
		o.says[long("a/y")] = cache.Change{Name: long("a/y"), Resource: cache.NewResource(cache.Spec{
			Name: long("a/y"), Version: "1", TypeURL: clusterType, Value: clusterNamed(t, long("a/y"), "y"),
		})}
		p := &player{origins: o}
		list, err := p.parse(long("a:l"), `list 1 inline e 1 "inline"`)
		if err != nil {
			t.Fatal(err)
		}
		p.say(list)
		o.setPolicy("a", Policy{NotFound: true})
		wants := map[string]*wanted{redirect: o.want(redirect), alternative: o.want(alternative), entry: o.want(entry)}

		routes := cache.Key{Scope: cache.Scope{Authority: "a", OldStyle: true}, TypeURL: xdstype.RouteV3, Name: "routes"}
		var held wanted
		o.cache.Watch(routes, &held)
		refer := func(names ...string) {
			c := cache.Change{Name: "routes"}
			host := &routev3.VirtualHost{}
			for _, name := range names {
				host.Routes = append(host.Routes, &routev3.Route{Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: name},
				}}})
			}
			if len(names) > 0 {
				c.Resource = cache.NewResource(cache.Spec{Name: "routes", TypeURL: xdstype.RouteV3, Value: mustMarshal(t, &routev3.RouteConfiguration{
					Name: "routes", VirtualHosts: []*routev3.VirtualHost{host},
				})})
			}
			o.cache.Apply(cache.Update{Scope: routes.Scope, TypeURL: routes.TypeURL, Changes: []cache.Change{c}})
		}
		check := func(when, redirected, chosen, inline string) {
			t.Helper()
			o.settle()
			for name, want := range map[string]string{redirect: redirected, alternative: chosen, entry: inline} {
				r := wants[name].entry.State().Resource
				if r == nil {
					t.Fatalf("%s: %s is %s", when, name, wants[name].says())
				}
				if got, _ := contentOf(r); got != want || r.Name() != name {
					t.Errorf("%s: inside of %s is %s, want %s", when, r.Name(), got, want)
				}
			}
		}
		check("nobody refers to it", redirect, alternative, entry)
		escaped := strings.Replace(alternative, "#alt=xdstp:", "%23alt=xdstp%3A", 1)
		folded := strings.Replace(entry, "#", "%23", 1)
		refer(begins+"r?b=1&a=2", escaped, folded)
		check("it is referred to", begins+"r?b=1&a=2", escaped, folded)
		folding := strings.Replace(alternative, "#", "%23", 1)
		refer(begins+"r?b=%31&a=2", folding, entry)
		check("in another spelling", begins+"r?b=%31&a=2", folding, entry)
		refer()
		check("no more", redirect, alternative, entry)
		o.cache.Unwatch(&held)
		o.leave(wants)
	})
}
