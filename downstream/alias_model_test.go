package downstream

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// TestClientsThatAskByAliasesHoldEachResourceOnce is for delta clients that request names, some of which are aliases,
// while the aliases change. In the end a client holds exactly the resources that its names stand for, each once and
// under its own name, and knows which of its names stand for which resource. xDS: "Resource names" of "Incremental
// xDS".
func TestClientsThatAskByAliasesHoldEachResourceOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newAliasOrigin()
		defer o.cache.Close()
		server, _ := newTestServer(o.cache, rapid.SampledFrom([]int{DefaultMaxResponseBytes, 200}).Draw(t, "limit"))
		c := &aliasClient{server: server, names: map[string]bool{}, held: map[string]aliasHeld{}, of: map[string]string{}}
		c.connect(t)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				o.change(t)
			case 2:
				c.ask(t)
			case 3:
				for range rapid.IntRange(1, 3).Draw(t, "responses") {
					c.receive(t)
				}
			case 4:
				for c.receive(t) {
				}
				c.conn.close()
				c.connect(t)
			}
		}
		o.change(t)
		for c.receive(t) {
		}
		o.compare(t, c)
		c.conn.close()
	})
}

var (
	aliasNames = []string{"a", "b", "c", "r", "s"}
	ownNames   = []string{"r", "s"}
)

// aliasOrigin has what each name stands for: the own name of a resource, or nothing.
type aliasOrigin struct {
	cache   *cache.Cache
	of      map[string]string
	content map[string]string // of each resource
	changes int
}

func newAliasOrigin() *aliasOrigin {
	return &aliasOrigin{cache: newTestCache(&recordingSource{}, 0), of: map[string]string{}, content: map[string]string{}}
}

// change tells the cache, at once, what all names stand for.
func (o *aliasOrigin) change(t *rapid.T) {
	o.changes++
	for _, own := range ownNames {
		if o.content[own] == "" || rapid.Bool().Draw(t, "changed "+own) {
			o.content[own] = fmt.Sprint(own, o.changes)
		}
	}
	there := map[string]bool{}
	for _, own := range ownNames {
		there[own] = rapid.IntRange(0, 3).Draw(t, own+" is there") > 0
	}
	u := cache.Update{Scope: oldStyleScope(""), TypeURL: xdstype.VirtualHostV3}
	for _, name := range aliasNames {
		own := name
		if !slices.Contains(ownNames, name) {
			own = rapid.SampledFrom([]string{"r", "s", name}).Draw(t, name)
		}
		if o.of[name] = own; own == name && !there[own] {
			o.of[name] = ""
		} else if !there[own] {
			own, o.of[name] = "", ""
		}
		change := cache.Change{Name: name}
		if o.of[name] != "" {
			content := o.content[own]
			change.Resource = cache.NewResource(cache.Spec{
				Name: own, Version: content, TypeURL: xdstype.VirtualHostV3, Value: encodeContent(own, content),
			})
			if own != name {
				change.Resource = change.Resource.Aliased()
			}
		}
		u.Changes = append(u.Changes, change)
	}
	t.Logf("the origin: %v %v", o.of, o.content)
	o.cache.Apply(u)
}

func (o *aliasOrigin) compare(t *rapid.T, c *aliasClient) {
	want, have := map[string]string{}, map[string]string{}
	for name := range c.names {
		own := o.of[name]
		if own == "" {
			continue
		}
		want[own] = o.content[own]
		if own != name && c.of[name] != own {
			t.Errorf("the client takes %q for an alias of %q, want of %q", name, c.of[name], own)
		}
	}
	for own, held := range c.held {
		// What went while there was no stream, the relay may know by the alias only.
		if held.stream == c.streams || want[own] != "" {
			have[own] = held.content
		}
	}
	if !maps.Equal(want, have) {
		t.Errorf("the client of %v holds %v, want %v", slices.Sorted(maps.Keys(c.names)), have, want)
	}
}

type aliasHeld struct {
	version, content string
	stream           int // on which it came
}

// aliasClient is one that asks for names and keeps what it is sent, by own names. of are
// the own names of what its aliases stand for.
type aliasClient struct {
	server *Server
	conn   *testClient
	names  map[string]bool
	held   map[string]aliasHeld
	of     map[string]string
	// streams is how many there have been.
	streams int
}

func (c *aliasClient) connect(t *rapid.T) {
	c.streams++
	clear(c.of)
	c.conn = newTestClient(c.server, deltaForm.name, &corev3.Node{Id: "c"})
	initial := map[string]string{}
	for own, held := range c.held {
		initial[own] = held.version
	}
	t.Logf("a new stream: %v having %v", slices.Sorted(maps.Keys(c.names)), initial)
	if len(c.names) == 0 {
		return
	}
	c.send(t, &discoveryv3.DeltaDiscoveryRequest{
		ResourceNamesSubscribe: slices.Sorted(maps.Keys(c.names)), InitialResourceVersions: initial,
	})
}

func (c *aliasClient) send(t *rapid.T, req *discoveryv3.DeltaDiscoveryRequest) {
	req.TypeUrl = xdstype.VirtualHostV3
	if err := c.conn.delta(req); err != nil {
		t.Fatal(err)
	}
}

// ask subscribes to a name, or gives one up, with what only that stood for.
func (c *aliasClient) ask(t *rapid.T) {
	name := rapid.SampledFrom(aliasNames).Draw(t, "name")
	if !c.names[name] || rapid.Bool().Draw(t, "again") {
		t.Logf("subscribe %s", name)
		c.names[name] = true
		c.send(t, &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{name}})
		return
	}
	t.Logf("unsubscribe %s", name)
	delete(c.names, name)
	delete(c.of, name)
	c.drop()
	c.send(t, &discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{name}})
}

// drop drops what no name stands for any more that the client asks for.
func (c *aliasClient) drop() {
	maps.DeleteFunc(c.held, func(own string, _ aliasHeld) bool {
		if c.names[own] {
			return false
		}
		for _, of := range c.of {
			if of == own {
				return false
			}
		}
		return true
	})
}

func (c *aliasClient) receive(t *rapid.T) bool {
	r := c.conn.read(t)
	if r == nil {
		return false
	}
	t.Logf("%s", r)
	for _, res := range r.resources {
		if res.inside != "" && res.inside != res.name {
			t.Errorf("%q is said to be %q", res.inside, res.name)
		}
		c.held[res.name] = aliasHeld{res.version, res.content, c.streams}
		for _, alias := range res.aliases {
			if c.names[alias] {
				c.of[alias] = res.name
			} else {
				t.Errorf("%q has the alias %q, by which the client has not asked", res.name, alias)
			}
		}
		if !c.names[res.name] && len(res.aliases) == 0 {
			t.Errorf("%q is sent to who asked for neither it nor an alias", res.name)
		}
	}
	for _, name := range r.removed {
		delete(c.held, name)
		delete(c.of, name)
		maps.DeleteFunc(c.of, func(_, own string) bool { return own == name })
	}
	return true
}
