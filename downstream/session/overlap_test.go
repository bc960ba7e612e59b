package session

import (
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// A name that several sets cover is sent by the first of its owners, and a set covers only what is
// asked for in the same way.
func TestOwnersOfAName(t *testing.T) {
	const glob, view, other = "xdstp://a/t/dir/*", "xdstp://view/t/one/*", "xdstp://view/t/two/*"
	tests := []struct {
		name, subscribed string
		covering         string // in the order in which they own the name
		standIn          string
	}{
		{"xdstp://a/t/dir/x", "", "", ""},
		{"x", "*", "*", "*"},
		{"x", "* " + glob, "*", "*"},
		{"xdstp://a/t/dir/x", "* " + glob, glob + " *", glob},
		{"xdstp://a/t/else/x", "* " + glob, "*", ""},
		{"xdstp://a/t/dir/x", "* " + glob + " " + view, glob + " * " + view, glob},
		{"xdstp://a/t/else/x", "* " + glob + " " + view + " " + other, view + " * " + other, ""},
		{"x", view + " " + other, view + " " + other, ""},
		{"xdstp://a/t/dir/x", "{k=v} * " + glob, "", ""},
		{"xdstp://a/t/dir/x{k=v}", "{k=v} * " + glob, glob, glob},
	}
	for _, test := range tests {
		t.Run(test.name+" of "+test.subscribed, func(t *testing.T) {
			c := cache.New(anySource{}, cache.Options{})
			defer c.Close()
			topics := c.NewReader()
			s := newSubscriptions(xdstype.ClusterV3, &Client{Host: &anyHost{}, Topics: &topics})
			defer s.Close()
			subscribed, byLocator := strings.CutPrefix(test.subscribed, "{k=v} ")
			for _, name := range strings.Fields(subscribed) {
				ref := refOf(name)
				if byLocator && name != cache.Wildcard {
					ref = refOf(name + "{k=v}")
				}
				if name == cache.Wildcard && !byLocator {
					s.subscribeWildcard(ref)
				} else if name != cache.Wildcard {
					s.subscribe(ref)
				}
			}
			var covering []string
			for _, set := range s.covering(refOf(test.name)) {
				covering = append(covering, set.ref.name)
			}
			if got := strings.Join(covering, " "); got != test.covering {
				t.Errorf("covered by %q, want %q", got, test.covering)
			}
			got := ""
			if set := s.standIn(refOf(test.name)); set != nil {
				got = set.ref.name
			}
			if got != test.standIn {
				t.Errorf("%q stands in, want %q", got, test.standIn)
			}
		})
	}
}

func refOf(text string) resourceRef {
	name, params, ok := strings.Cut(strings.TrimSuffix(text, "}"), "{")
	if !ok {
		return refByName(name)
	}
	return refByLocator(&discoveryv3.ResourceLocator{Name: name, DynamicParameters: cache.ParseParams(params)})
}

// anyHost is a stream on which all names mean something: those of the authority view are in views.
type anyHost struct{ Host }

func (*anyHost) Key(typeURL, name string) (cache.Key, error) {
	key := cache.Key{TypeURL: typeURL, Name: name, Scope: cache.Scope{OldStyle: true}}
	if k, err := urn.KeyOf(name); err == nil {
		key.Name, key.Scope = k.Name, cache.Scope{Authority: k.Authority}
		if k.Authority == "view" {
			key.Scope.Derived = "view"
		}
	}
	return key, nil
}

func (*anyHost) Side(k cache.Key) cache.Key    { return k }
func (*anyHost) Admits(cache.Key) error        { return nil }
func (*anyHost) Enter(cache.Key) error         { return nil }
func (*anyHost) Move(_, _ cache.Key)           {}
func (*anyHost) Leave(cache.Key)               {}
func (*anyHost) Mark(Subscription) cache.Waker { return nil }

type anySource struct{}

func (anySource) Start(cache.Key)   {}
func (anySource) Refresh(cache.Key) {}
func (anySource) Stop(cache.Key)    {}
