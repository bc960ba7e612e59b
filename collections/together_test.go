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
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
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
