package authority

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/urn"
)

const (
	clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	secretType  = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

const federation = `
listeners: [{address: ":18000"}]
authorities:
  - name: cloud.example.com
    servers: [{address: "cloud:443", tls: {}}]
  - name: "*.example.com"
    servers: [{address: "any:1", protocol: sotw}]
  - name: "*.b.example.com"
    servers: [{address: "b:1", protocol: delta}]
  - name: c.b.example.com
    directory: c
  - name: Onprem:1
    directory: onprem
`

const emptyAuthority = federation + `
  - name: ""
    directory: empty
`

const rules = federation + `
old_style_names:
  - when: type_url.endsWith(".Secret")
    authority: Onprem:1
  - when: node.metadata.team == "edge"
    authority: cloud.example.com
    partition: node.cluster + "/" + node.locality.zone
  - when: |
      node.cluster == "tenant" &&
      node.id != ""
    authority: x.b.example.com
    partition: node.metadata.tenant
`

const catchAll = rules + `
  - authority: Onprem:1
    partition: node.id
`

func router(t testing.TB, yaml string) *Router {
	t.Helper()
	cfg, err := configs.Parse("relay.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return New(cfg)
}

func node(t *testing.T, id, cluster string, metadata map[string]any) *corev3.Node {
	t.Helper()
	m, err := structpb.NewStruct(metadata)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Node{Id: id, Cluster: cluster, Locality: &corev3.Locality{Zone: "z1"}, Metadata: m}
}

// Xdstp names by authority: exact, then the longest suffix.
func TestXdstpNamesGoByTheirAuthority(t *testing.T) {
	const id = "/envoy.config.cluster.v3.Cluster/x"
	for _, tt := range []struct {
		authority, source string
	}{
		{"cloud.example.com", "cloud.example.com"},
		{"other.example.com", "*.example.com"},
		{"a.other.example.com", "*.example.com"},
		{"b.example.com", "*.example.com"},
		{"a.b.example.com", "*.b.example.com"},
		{"a.a.b.example.com", "*.b.example.com"},
		{"c.b.example.com", "c.b.example.com"},
		{"a.c.b.example.com", "*.b.example.com"},
		{"Onprem:1", "Onprem:1"},
		{"", ""},
	} {
		r := router(t, emptyAuthority)
		route, err := r.Xdstp("xdstp://" + tt.authority + id)
		if err != nil {
			t.Errorf("%q: %v", tt.authority, err)
			continue
		}
		if want := (cache.Scope{Authority: tt.authority}); route.Scope != want {
			t.Errorf("%q: got %+v, want %+v", tt.authority, route.Scope, want)
		}
		source, ok := r.Source(route.Scope)
		if !ok || source.Name != tt.source {
			t.Errorf("%q: got source %v, want %q", tt.authority, source, tt.source)
		}
	}
}

func TestTwoSpellingsOfOneNameHaveOneRoute(t *testing.T) {
	r := router(t, federation)
	envoy, err := r.Xdstp("xdstp://Onprem:1/envoy.config.cluster.v3.Cluster/a%3Ab?x=1&y=2")
	if err != nil {
		t.Fatal(err)
	}
	grpc, err := r.Xdstp("xdstp://Onprem%3A1/envoy.config.cluster.v3.Cluster/a:b?y=2&x=1")
	if err != nil {
		t.Fatal(err)
	}
	if envoy != grpc {
		t.Errorf("got %+v and %+v", envoy, grpc)
	}
	if want := "envoy.config.cluster.v3.Cluster"; envoy.Key.Type != want {
		t.Errorf("got type %q, want %q", envoy.Key.Type, want)
	}
}

func TestXdstpNamesThatAreNotServed(t *testing.T) {
	r := router(t, federation)
	for _, tt := range []struct {
		name, want string
		as         any
	}{
		{"xdstp://other/t/x", `xdstp name "xdstp://other/t/x": authority "other" is not configured at this relay`, new(*UnknownAuthorityError)},
		{"xdstp://example.com/t/x", `xdstp name "xdstp://example.com/t/x": authority "example.com" is not configured at this relay`, new(*UnknownAuthorityError)},
		{"xdstp://.example.com/t/x", `xdstp name "xdstp://.example.com/t/x": authority ".example.com" is not configured at this relay`, new(*UnknownAuthorityError)},
		{"xdstp://notexample.com/t/x", `xdstp name "xdstp://notexample.com/t/x": authority "notexample.com" is not configured at this relay`, new(*UnknownAuthorityError)},
		{"xdstp://onprem:1/t/x", `xdstp name "xdstp://onprem:1/t/x": authority "onprem:1" is not configured at this relay`, new(*UnknownAuthorityError)},
		{"xdstp:///t/x", `xdstp name "xdstp:///t/x": authority "" is not configured at this relay`, new(*UnknownAuthorityError)},
		{"xdstp://Onprem:1/tCollection/x/*#entry=a", `xdstp name "xdstp://Onprem:1/tCollection/x/*#entry=a": entry of a glob collection "entry=a" (want an entry of a list collection) at offset 32`, new(*urn.Error)},
		{"xdstp://Onprem:1/t/x#entry=a", `xdstp name "xdstp://Onprem:1/t/x#entry=a": entry of a name that is not a list collection "entry=a" (want a type that ends in Collection) at offset 20`, new(*urn.Error)},
		{"xdstp://Onprem:1/t/x#other=a", `xdstp name "xdstp://Onprem:1/t/x#other=a": unknown directive "other" (want alt or entry, and %2C for a comma within a value) at offset 21`, new(*urn.Error)},
		{"xdstp://other/t/x#alt=xdstp://another/t/x", `xdstp name "xdstp://other/t/x#alt=xdstp://another/t/x": authority "other" is not configured at this relay`, new(*UnknownAuthorityError)},
		{"xdstp://onprem:1/t/x/*", `xdstp name "xdstp://onprem:1/t/x/*": authority "onprem:1" is not configured at this relay`, new(*UnknownAuthorityError)},
		{"xdstp://Onprem:1", `xdstp name "xdstp://Onprem:1": no resource type (want xdstp://authority/type/id) at offset 16`, new(*urn.Error)},
		{"backend", `xdstp name "backend": not an xdstp name (want xdstp://authority/type/id) at offset 0`, new(*urn.Error)},
	} {
		route, err := r.Xdstp(tt.name)
		if err == nil {
			t.Errorf("%s: got %+v, want an error", tt.name, route)
			continue
		}
		if err.Error() != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.name, err, tt.want)
		}
		if !errors.As(err, tt.as) {
			t.Errorf("%s: got a %T, want a %s", tt.name, err, reflect.TypeOf(tt.as).Elem())
		}
	}
}

func TestOpaqueNamesGoByTheirAuthorityAndAreNobodyElses(t *testing.T) {
	r := router(t, federation+`
  - {name: policy, servers: [{address: "policy:1"}], context_parameters: {require: [shard]}}
  - {name: sharing, servers: [{address: "sharing:1"}], context_parameters: {drop: [id]}}
`)
	for _, tt := range []struct {
		rule, name, authority, key string
	}{
		{"no type", "xdstp://Onprem:1/x", "Onprem:1", ""},
		{"no type, and parameters", "xdstp://Onprem:1/x?a=b", "Onprem:1", ""},
		{"no id", "xdstp://Onprem:1/t", "Onprem:1", ""},
		{"no id, but what is dropped", "xdstp://sharing/t?id=1", "", ""},
		{"an empty id", "xdstp://Onprem:1/t/", "Onprem:1", "xdstp://Onprem:1/t/"},
		{"nothing but the authority", "xdstp://Onprem:1", "Onprem:1", ""},
		{"a bad escape", "xdstp://Onprem:1/t/%zz", "Onprem:1", ""},
		{"the authority in another spelling", "xdstp://%4Fnprem:1/t/%zz", "Onprem:1", ""},
		{"a directive that nobody knows", "xdstp://Onprem:1/t/x#other=a", "Onprem:1", ""},
		{"a pattern's", "xdstp://a.b.example.com/t/%zz", "a.b.example.com", ""},
		{"a name, of another type than it is asked for under", "xdstp://Onprem:1/t/%78", "Onprem:1", "xdstp://Onprem:1/t/x"},
		{"the same, without what is dropped", "xdstp://sharing/t/x?id=1", "sharing", "xdstp://sharing/t/x"},
		{"an authority that is not configured", "xdstp://other/%zz", "", ""},
		{"one that only begins as one that is", "xdstp://Onprem:12/%zz", "", ""},
		{"one with a configured name behind an @", "xdstp://x@Onprem:1/%zz", "", ""},
		{"one that cannot be read", "xdstp://Onprem:1%zz/t", "", ""},
		{"none", "xdstp:Onprem:1/t/x", "", ""},
		{"a glob", "xdstp://Onprem:1/t/x/*", "", ""},
		{"what looks like a glob", "xdstp://Onprem:1/t/%zz/*?a", "", ""},
		{"what has directives, and is for the relay", "xdstp://Onprem:1/t/x#alt=xdstp://other/t/x", "", ""},
		{"what lacks a parameter", "xdstp://policy/t/x", "", ""},
		{"what is no name, and may lack a parameter", "xdstp://policy/t/%zz?shard=1", "", ""},
		{"an old-style name", "backend", "", ""},
	} {
		route, ok := r.Opaque(tt.name)
		if tt.authority == "" {
			if ok {
				t.Errorf("%s: got %+v", tt.rule, route)
			}
			continue
		}
		if want := (cache.Scope{Authority: tt.authority}); !ok || route.Scope != want || route.Key.Name != cmp.Or(tt.key, tt.name) {
			t.Errorf("%s: got %+v, %t", tt.rule, route, ok)
		}
		// It cannot be the key of anything that is a name.
		if key, err := urn.KeyOf(route.Key.Name); err == nil && tt.key == "" && key.Name == route.Key.Name {
			t.Errorf("%s: %s is a name", tt.rule, route.Key.Name)
		}
	}
}

// A name with directives has one key, in whatever spelling a client requests it.
func TestNamesWithDirectivesAreDerived(t *testing.T) {
	r := router(t, federation)
	for _, tt := range []struct{ name, authority, key, typ string }{
		{"xdstp://Onprem:1/t/x#alt=xdstp://cloud.example.com/t/y", "Onprem:1", "xdstp://Onprem:1/t/x#alt=xdstp://cloud.example.com/t/y", "t"},
		{"xdstp://Onprem%3A1/t/x%23alt=xdstp%3A//cloud.example.com/t/y", "Onprem:1", "xdstp://Onprem:1/t/x#alt=xdstp://cloud.example.com/t/y", "t"},
		{"xdstp://Onprem:1/t/x#alt=xdstp://cloud.example.com/t/y#alt=xdstp://Onprem:1/t/z", "Onprem:1", "xdstp://Onprem:1/t/x#alt=xdstp://cloud.example.com/t/y%23alt=xdstp://Onprem:1/t/z", "t"},
		{"xdstp://Onprem:1/t/x%23alt=xdstp%3A//cloud.example.com/t/y%23alt=xdstp%3A//Onprem%3A1/t/z", "Onprem:1", "xdstp://Onprem:1/t/x#alt=xdstp://cloud.example.com/t/y%23alt=xdstp://Onprem:1/t/z", "t"},
		{"xdstp://Onprem:1/tCollection/x#entry=a", "Onprem:1", "xdstp://Onprem:1/tCollection/x#entry=a", "t"},
		{"xdstp://Onprem:1/tCollection/x%23entry=a", "Onprem:1", "xdstp://Onprem:1/tCollection/x#entry=a", "t"},
		// Of an authority that is not configured nothing can be had, so the alternative
		// counts.
		{"xdstp://other/t/x#alt=xdstp://cloud.example.com/t/y", "other", "xdstp://other/t/x#alt=xdstp://cloud.example.com/t/y", "t"},
		{"xdstp://cloud.example.com/t/x#alt=xdstp://other/t/y", "cloud.example.com", "xdstp://cloud.example.com/t/x#alt=xdstp://other/t/y", "t"},
	} {
		route, err := r.Xdstp(tt.name)
		want := Route{
			Scope: cache.Scope{Authority: tt.authority, Derived: cache.Resolved},
			Key:   urn.Key{Name: tt.key, Authority: tt.authority, Type: tt.typ},
		}
		if err != nil || route != want {
			t.Errorf("%s: got %+v, %v, want %+v", tt.name, route, err, want)
		}
		if _, err := r.Leaf(tt.key); err == nil {
			t.Errorf("%s is taken for the name of a resource without directives", tt.key)
		}
	}
	// A # that is not meant as one is a part of the name.
	const plain = "xdstp://Onprem:1/t/x%23alt"
	for _, route := range []func(string) (Route, error){r.Xdstp, r.Leaf} {
		got, err := route(plain)
		want := Route{Scope: cache.Scope{Authority: "Onprem:1"}, Key: urn.Key{Name: plain, Authority: "Onprem:1", Type: "t"}}
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", plain, got, err, want)
		}
	}
}

// Old-style names by the first rule that matches.
func TestOldStyleNamesGoByTheFirstRuleThatMatches(t *testing.T) {
	r := router(t, catchAll)
	for _, tt := range []struct {
		name    string
		node    *corev3.Node
		typeURL string
		want    cache.Scope
	}{
		{"the type decides", node(t, "a", "tenant", nil), secretType, cache.Scope{Authority: "Onprem:1", Partition: "", OldStyle: true}},
		{"the first of two", node(t, "a", "tenant", map[string]any{"team": "edge"}), clusterType, cache.Scope{Authority: "cloud.example.com", Partition: "tenant/z1", OldStyle: true}},
		{"one that cannot be evaluated is passed", node(t, "a", "tenant", map[string]any{"tenant": "blue"}), clusterType, cache.Scope{Authority: "x.b.example.com", Partition: "blue", OldStyle: true}},
		{"the last", node(t, "a", "mesh", nil), clusterType, cache.Scope{Authority: "Onprem:1", Partition: "a", OldStyle: true}},
		{"no node", nil, "", cache.Scope{Authority: "Onprem:1", Partition: "", OldStyle: true}},
	} {
		got, err := r.OldStyle(configs.Client{Node: tt.node}, tt.typeURL)
		if err != nil || got != tt.want {
			t.Errorf("%s: got %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
		if _, ok := r.Source(got); !ok {
			t.Errorf("%s: no source", tt.name)
		}
	}
}

func TestOldStyleAndXdstpNamesNeverShareAScope(t *testing.T) {
	r := router(t, rules)
	oldStyle, err := r.OldStyle(configs.Client{}, secretType)
	if err != nil {
		t.Fatal(err)
	}
	route, err := r.Xdstp("xdstp://Onprem:1/t/x")
	if err != nil {
		t.Fatal(err)
	}
	if oldStyle.Authority != route.Scope.Authority || oldStyle.Partition != route.Scope.Partition || oldStyle == route.Scope {
		t.Errorf("got %+v and %+v", oldStyle, route.Scope)
	}
}

func TestClientsWithoutScope(t *testing.T) {
	r := router(t, rules)
	_, err := r.OldStyle(configs.Client{Node: node(t, "a", "mesh", nil)}, clusterType)
	var noRule *NoRuleError
	if want := `old-style names: no rule of old_style_names matches node "a" of cluster "mesh" for type "` + clusterType + `"`; !errors.As(err, &noRule) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}

	_, err = r.OldStyle(configs.Client{Node: node(t, "a", "tenant", nil)}, clusterType)
	var partition *PartitionError
	if want := `old_style_names[2].partition: node.metadata.tenant for node "a": no such key: tenant`; !errors.As(err, &partition) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if partition.Unwrap() == nil {
		t.Error("the reason is lost")
	}
}

func TestSourceOfAScopeFromElsewhere(t *testing.T) {
	if a, ok := router(t, federation).Source(cache.Scope{Authority: "other"}); ok {
		t.Errorf("got %+v", a)
	}
}

func BenchmarkXdstp(b *testing.B) {
	r := router(b, federation)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Xdstp("xdstp://a.a.b.example.com/envoy.config.cluster.v3.Cluster/payments"); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleRouter_Describe() {
	cfg, err := configs.Parse("relay.yaml", []byte(catchAll))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(New(cfg).Describe())
	// Output:
	// authorities[0]: xdstp://cloud.example.com/... is fed by server cloud:443 (auto, TLS)
	// authorities[1]: xdstp://*.example.com/... is fed by server any:1 (sotw, plaintext), separately for each authority
	// authorities[2]: xdstp://*.b.example.com/... is fed by server b:1 (delta, plaintext), separately for each authority
	// authorities[3]: xdstp://c.b.example.com/... is fed by directory c
	// authorities[4]: xdstp://Onprem:1/... is fed by directory onprem
	// old_style_names[0]: a client with type_url.endsWith(".Secret") is served from authority "Onprem:1", sharing with all clients of this rule
	// old_style_names[1]: a client with node.metadata.team == "edge" is served from authority "cloud.example.com", sharing with those that have the same node.cluster + "/" + node.locality.zone
	// old_style_names[1]: different Nodes can have the same partition, because it joins texts that clients choose: see docs/partitions.md
	// old_style_names[1]: the relay sends the control plane a Node with only id, cluster, locality.zone of the first client of a partition; all clients of the partition get the same resources, also where their Nodes differ
	// old_style_names[2]: a client with node.cluster == "tenant" && node.id != "" is served from authority "x.b.example.com", sharing with those that have the same node.metadata.tenant
	// old_style_names[2]: the relay sends the control plane a Node with only id, cluster, metadata.tenant of the first client of a partition; all clients of the partition get the same resources, also where their Nodes differ
	// old_style_names[3]: every other client is served from authority "Onprem:1", sharing with those that have the same node.id
}
