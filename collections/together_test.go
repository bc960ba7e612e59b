package collections

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/delivery/deliverytest"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// In a list, one entry takes the place of another, and a third one has no answer yet. What is written at once, after
// writeWithin, and with the answer depends on the type.
func TestARemovalIsNotWrittenAfterWhatTakesItsPlace(t *testing.T) {
	host := func(name string) proto.Message {
		return &routev3.VirtualHost{Name: name, Domains: []string{"example.com"}}
	}
	for _, tt := range []struct {
		message        string
		content        func(name string) proto.Message
		late, answered string
	}{
		{"envoy.config.route.v3.VirtualHost", host, "+new -old", "+other"},
		// No claims are known of the type: the addition waits with the removal.
		{"example.Unheard", host, "", "+new +other -old"},
		// Others refer to the type, so the removal is sent after all additions.
		{"envoy.config.cluster.v3.Cluster", func(name string) proto.Message { return &clusterv3.Cluster{Name: name} }, "+new", "+other -old"},
	} {
		t.Run(tt.message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				typeURL := xdstype.Prefix + tt.message
				list, _ := urn.ParseURL("xdstp://a/" + tt.message + "Collection/l")
				other := "xdstp://b/" + tt.message + "/other"
				k := cache.Key{Scope: cache.Scope{Derived: "view/0"}, TypeURL: typeURL, Name: cache.Wildcard}
				o := newStepped(t, Options{Views: map[string]View{"view/0": {Collections: []urn.URL{list}}}})
				defer o.close()
				inline := func(name string) []byte {
					value, err := proto.Marshal(tt.content(name))
					if err != nil {
						t.Fatal(err)
					}
					return inlineEntry(o, name, "1", &anypb.Any{TypeUrl: typeURL, Value: value})
				}
				says := func(version string, entries ...[]byte) {
					name := list.Key().Name
					o.say(cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{
						Name: name, Version: version, TypeURL: keyOf(name).TypeURL, Value: collection(name, entries...).Value(),
					})})
				}
				client := &setSub{}
				client.set = o.cache.WatchSet(k, client)
				defer o.cache.Unwatch(client)
				news := func() string {
					o.settle()
					var all []string
					client.set.Since(&client.SetWatch, func(m cache.Member) bool {
						sign := map[cache.News]string{cache.Changed: "+", cache.Removed: "-"}[m.News]
						name := m.Name[strings.LastIndexAny(m.Name, "/=")+1:]
						all = append(all, sign+name)
						return true
					})
					slices.Sort(all)
					return strings.Join(all, " ")
				}
				says("1", inline("old"))
				if got := news(); got != "+old" {
					t.Fatalf("at first: %q", got)
				}
				says("2", inline("new"), locatorEntry(o, other))
				if got := news(); got != "" {
					t.Errorf("at once: %q", got)
				}
				o.wait(writeWithin - time.Millisecond)
				if got := news(); got != "" {
					t.Errorf("earlier: %q", got)
				}
				o.wait(time.Millisecond)
				if got := news(); got != tt.late {
					t.Errorf("after %v: %q, want %q", writeWithin, got, tt.late)
				}
				o.say(cache.Change{Name: other, Resource: cache.NewResource(cache.Spec{Name: other, Version: "1", TypeURL: typeURL})})
				if got := news(); got != tt.answered {
					t.Errorf("with the answer: %q, want %q", got, tt.answered)
				}
			})
		})
	}
}

// Two views of a partition change at once: a RouteConfiguration leads from a Cluster to another one, which takes its place.
// Clients may be sent what the cache has between two deliveries. So each RouteConfiguration has its Cluster there, too.
func TestARemovalIsWrittenAfterTheAdditionsOfAllViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		contents := map[string]func(name string) proto.Message{
			"Cluster":            func(name string) proto.Message { return &clusterv3.Cluster{Name: name} },
			"RouteConfiguration": func(name string) proto.Message { return &routev3.RouteConfiguration{Name: name} },
		}
		messages := []string{"Cluster", "RouteConfiguration"}
		lists, views, keys := map[string]urn.URL{}, map[string]View{}, map[string]cache.Key{}
		for _, message := range messages {
			full := string(contents[message]("").ProtoReflect().Descriptor().FullName())
			lists[message], _ = urn.ParseURL("xdstp://a/" + full + "Collection/l")
			scope := cache.Scope{Derived: "view/" + message}
			views[scope.Derived] = View{Collections: []urn.URL{lists[message]}}
			keys[message] = cache.Key{Scope: scope, TypeURL: xdstype.Prefix + full, Name: cache.Wildcard}
		}
		o := newStepped(t, Options{Views: views})
		defer o.close()
		clients := map[string]*setSub{}
		for _, message := range messages {
			client := &setSub{}
			client.set = o.cache.WatchSet(keys[message], client)
			defer o.cache.Unwatch(client)
			clients[message] = client
		}
		var states []string
		o.resolver.to = deliverytest.Func(func(e delivery.Event) {
			deliverytest.Direct(o.cache).Deliver(e)
			var state []string
			for _, message := range messages {
				for _, name := range []string{"old", "new"} {
					if clients[message].set.Member(name) != nil {
						state = append(state, message+" "+name)
					}
				}
			}
			states = append(states, strings.Join(state, ", "))
		})
		says := func(name string) {
			for _, message := range messages {
				key, content := keyOf(lists[message].Key().Name), contents[message](name)
				o.say(cache.Change{Name: key.Name, Resource: cache.NewResource(cache.Spec{
					Name: key.Name, Version: name, TypeURL: key.TypeURL,
					Value: collection(key.Name, inlineEntry(o, name, "1", anyOf(o, content))).Value(),
				})})
			}
			states = nil
			o.settle()
		}
		says("old")
		says("new")
		want := []string{
			"Cluster old, Cluster new, RouteConfiguration old",
			"Cluster old, Cluster new, RouteConfiguration old, RouteConfiguration new",
			"Cluster old, Cluster new, RouteConfiguration new",
			"Cluster new, RouteConfiguration new",
		}
		if !slices.Equal(states, want) {
			t.Errorf("the cache has %q, want %q", states, want)
		}
	})
}
