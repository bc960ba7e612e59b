package naming

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/partition"
	"github.com/xds-relay/xds-relay/urn"
)

// restrictedNames returns the names of a client under a configuration.
func restrictedNames(t *testing.T, yaml string, id *identity.Identity) *Names {
	t.Helper()
	cfg, err := configs.Parse("/etc/somewhere/relay.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	router := authority.New(cfg)
	asks := configs.Client{Identity: id}
	return &Names{Router: router, Nodes: partition.NewNodes(), Client: asks, Views: router.ViewMatcher(asks), ClientRights: NewRights(cfg, router).Of(id, false)}
}

const restricted = `
listeners: [{address: "127.0.0.1:0"}]
authorities:
  - {name: a, directory: files}
  - {name: Mixed, directory: files}
  - {name: "*.example.com", directory: files}
  - {name: drops, directory: files, context_parameters: {drop: [debug]}}
old_style_names: [{authority: a}]
views:
  - match: {type: cluster, wildcard: true}
    when: identity.source == "unix"
    collections: [xdstp://a/envoy.config.cluster.v3.Cluster/all/*]
rights:
  - when: type_url.endsWith(".Secret")
    allow: name.startsWith(identity.spiffe_path)
  - when: name.startsWith("xdstp://a/envoy.config.cluster.v3.Cluster/hidden")
    allow: false
  - when: authority == "pay.example.com" || authority == "Mixed" || name.contains("//pay.example.com/")
    allow: false
  - when: name == "xdstp://drops/envoy.config.cluster.v3.Cluster/x?a=1&b=2"
    allow: false
  - when: name.endsWith("#entry=hidden") || name.endsWith("ClusterCollection/hidden")
    allow: false
  - when: name == "*"
    allow: authority == ""
  - allow: true
`

func TestThereIsNoWayAroundADenialByAnotherSpelling(t *testing.T) {
	const (
		cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
		secret  = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
		name    = "xdstp://a/envoy.config.cluster.v3.Cluster/"
	)
	gateway := &identity.Identity{Source: identity.MTLS, SPIFFEPath: "/pay"}
	for _, tt := range []struct {
		rule          string
		typeURL, name string
		denied        string // the place of the rule; empty if it is allowed
	}{
		{"what the last rule allows", cluster, name + "open", ""},
		{"a name", cluster, name + "hidden", "rights[1] (relay.yaml:16)"},
		{"with escapes", cluster, "xdstp://a/envoy.config.cluster.v3.Cluster/%68idden", "rights[1] (relay.yaml:16)"},
		{"with an escape in the authority", cluster, "xdstp://%61/envoy.config.cluster.v3.Cluster/hidden", "rights[1] (relay.yaml:16)"},
		{"a glob", cluster, name + "hidden/*", "rights[1] (relay.yaml:16)"},
		{"a glob, with escapes", cluster, name + "hidde%6e/%2a", "rights[1] (relay.yaml:16)"},
		{"with another type than its own", secret[:len(secret)-6] + "Other", name + "hidden", "rights[1] (relay.yaml:16)"},
		{"a name that is none, where rules read the name", cluster, name + "%zz", "rights[1] (relay.yaml:16)"},
		{"an alternative", cluster, name + "open#alt=xdstp://a/envoy.config.cluster.v3.Cluster/hidden", "rights[1] (relay.yaml:16)"},
		{"an alternative, folded", cluster, name + "open%23alt=xdstp%3A//a/envoy.config.cluster.v3.Cluster/hidden", "rights[1] (relay.yaml:16)"},
		{"what has an alternative", cluster, name + "hidden#alt=xdstp://a/envoy.config.cluster.v3.Cluster/open", "rights[1] (relay.yaml:16)"},
		{"an alternative of an alternative", cluster, name + "open#alt=xdstp://a/envoy.config.cluster.v3.Cluster/open2%23alt=xdstp%3A%2F%2Fa%2Fenvoy.config.cluster.v3.Cluster%2Fhidden", "rights[1] (relay.yaml:16)"},
		{"alternatives that are allowed", cluster, name + "open#alt=xdstp://a/envoy.config.cluster.v3.Cluster/open2", ""},
		{"a glob's alternative", cluster, name + "open/*#alt=xdstp://a/envoy.config.cluster.v3.Cluster/hidden/*", "rights[1] (relay.yaml:16)"},
		{"an alternative of an authority that is not configured", cluster, name + "open#alt=xdstp://elsewhere/envoy.config.cluster.v3.Cluster/open", ""},
		{"an entry", cluster, "xdstp://a/envoy.config.cluster.v3.ClusterCollection/list#entry=hidden", "rights[4] (relay.yaml:22)"},
		{"an entry of a list", cluster, "xdstp://a/envoy.config.cluster.v3.ClusterCollection/hidden#entry=open", "rights[4] (relay.yaml:22)"},
		{"an entry, folded", cluster, "xdstp://a/envoy.config.cluster.v3.ClusterCollection/list%23entry=hidden", "rights[4] (relay.yaml:22)"},
		{"an entry behind an alternative", cluster, name + "open#alt=xdstp://a/envoy.config.cluster.v3.ClusterCollection/list%23entry=hidden", "rights[4] (relay.yaml:22)"},
		{"an authority", cluster, "xdstp://pay.example.com/envoy.config.cluster.v3.Cluster/x", "rights[2] (relay.yaml:18)"},
		{"an authority in capitals", cluster, "xdstp://PAY.example.com/envoy.config.cluster.v3.Cluster/x", "rights[2] (relay.yaml:18)"},
		{"an authority in capitals, escaped", cluster, "xdstp://p%41y.example.com/envoy.config.cluster.v3.Cluster/x", "rights[2] (relay.yaml:18)"},
		{"an authority as it is configured", cluster, "xdstp://Mixed/envoy.config.cluster.v3.Cluster/x", "rights[2] (relay.yaml:18)"},
		{"another authority", cluster, "xdstp://OTHER.example.com/envoy.config.cluster.v3.Cluster/x", ""},
		{"parameters in another order", cluster, "xdstp://drops/envoy.config.cluster.v3.Cluster/x?b=2&a=1", "rights[3] (relay.yaml:20)"},
		{"a parameter more, which is dropped", cluster, "xdstp://drops/envoy.config.cluster.v3.Cluster/x?b=2&debug=1&a=1", "rights[3] (relay.yaml:20)"},
		{"a Secret", secret, "/other/key", "rights[0] (relay.yaml:14)"},
		{"a Secret that it may have", secret, "/pay/key", ""},
		{"all Secrets", secret, "*", "rights[0] (relay.yaml:14)"},
		{"a Secret under version 2", "type.googleapis.com/envoy.api.v2.auth.Secret", "/other/key", "rights[0] (relay.yaml:14)"},
		{"a Secret under another prefix", "example.com/envoy.extensions.transport_sockets.tls.v3.Secret", "/other/key", "rights[0] (relay.yaml:14)"},
		{"a collection of Secrets", secret + "Collection", "xdstp://a/envoy.extensions.transport_sockets.tls.v3.SecretCollection/x", "rights[0] (relay.yaml:14)"},
		{"the same, requested as its members", secret, "xdstp://a/envoy.extensions.transport_sockets.tls.v3.SecretCollection/x", "rights[0] (relay.yaml:14)"},
		{"a wildcard", cluster, "*", "rights[5] (relay.yaml:24)"},
		{"an old-style name that looks like an xdstp one", cluster, "XDSTP://a/envoy.config.cluster.v3.Cluster/hidden", ""},
	} {
		names := restrictedNames(t, restricted, gateway)
		_, err := names.Key(tt.typeURL, tt.name)
		var as *downstream.RefusedError
		switch {
		case tt.denied == "" && err != nil:
			t.Errorf("%s: %v", tt.rule, err)
		case tt.denied == "":
		case !errors.As(err, &as):
			t.Errorf("%s: got %v, want a denial by %s", tt.rule, err, tt.denied)
		case as.Refusal != downstream.RefusedRight || as.Client.Code != codes.PermissionDenied || as.Client.Message != tt.denied+" does not allow it" && as.Client.Message != tt.denied+" cannot be evaluated for this client, and so does not allow it":
			t.Errorf("%s: got %v, want a denial by %s", tt.rule, as, tt.denied)
		}
		names.Close()
	}
}

func TestAWildcardThatIsAViewHasNoAuthority(t *testing.T) {
	names := restrictedNames(t, restricted, &identity.Identity{Source: identity.Unix})
	if k, err := names.Key("type.googleapis.com/envoy.config.cluster.v3.Cluster", "*"); err != nil || k.Scope.Derived == "" {
		t.Errorf("got %v, %v", k, err)
	}
}

func TestWhoIsDeniedEverythingIsInNoPartition(t *testing.T) {
	names := restrictedNames(t, `
listeners: [{address: "127.0.0.1:0"}]
authorities: [{name: a, servers: [{address: "cp:1"}]}]
old_style_names: [{authority: a}]
rights: [{when: name == "open", allow: true}]
`, identity.Anonymous(nil))
	scope := cache.Scope{Authority: "a", OldStyle: true}
	const cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	if _, err := names.Key(cluster, "hidden"); err == nil || err.Error() != "PermissionDenied: no rule of rights (relay.yaml:5) allows it" {
		t.Errorf("got %v", err)
	}
	if node := names.Nodes.Find(scope); node != nil {
		t.Errorf("the partition has the Node %v", node)
	}
	if _, err := names.Key(cluster, "open"); err != nil {
		t.Error(err)
	}
	if names.Nodes.Find(scope) == nil {
		t.Error("the partition has no Node")
	}
	names.Close()
	if node := names.Nodes.Find(scope); node != nil {
		t.Errorf("the partition has the Node %v still", node)
	}
}

func TestSecretsAreForWhoHasProvenWhoHeIs(t *testing.T) {
	const head = "listeners: [{address: \"127.0.0.1:0\"}]\nauthorities: [{name: a, directory: files}]\nold_style_names: [{authority: a}]\n"
	cfg, err := configs.Parse("relay.yaml", []byte(head))
	if err != nil {
		t.Fatal(err)
	}
	router := authority.New(cfg)
	of := NewRights(cfg, router)
	for _, tt := range []struct {
		who    string
		id     *identity.Identity
		anyone bool
		want   bool
	}{
		{"nobody", &identity.Identity{Source: identity.None}, false, false},
		{"nobody, where anyone may", &identity.Identity{Source: identity.None}, true, true},
		{"who is on the machine", &identity.Identity{Source: identity.None, Local: true}, false, true},
		{"who has a certificate", &identity.Identity{Source: identity.MTLS}, false, true},
		{"who is not known", nil, false, false},
	} {
		names := &Names{Router: router, Nodes: partition.NewNodes(), Views: router.ViewMatcher(configs.Client{}), ClientRights: of.Of(tt.id, tt.anyone)}
		if tt.want != (names.ClientRights == nil) {
			t.Errorf("%s: rights are %v", tt.who, names.ClientRights)
		}
		for _, typeURL := range []string{
			"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "type.googleapis.com/envoy.api.v2.auth.Secret",
			"x/envoy.api.v2.auth.Secret", "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.SecretCollection",
		} {
			for _, name := range []string{"x", "*"} {
				_, err := names.Key(typeURL, name)
				var as *downstream.RefusedError
				if got := err == nil; got != tt.want || !got && (!errors.As(err, &as) || as.Refusal != downstream.RefusedSecret) {
					t.Errorf("%s, %s %s: got %v", tt.who, typeURL, name, err)
				}
			}
		}
		if _, err := names.Key("type.googleapis.com/envoy.config.cluster.v3.Cluster", "x"); err != nil {
			t.Errorf("%s: %v", tt.who, err)
		}
		names.Close()
	}
}

func TestOwnNamesOfAliasesAreDecidedByTheirOwnSpelling(t *testing.T) {
	names := restrictedNames(t, restricted, identity.Anonymous(nil))
	const cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	key := cache.Key{Scope: cache.Scope{Authority: "a"}, TypeURL: cluster, Name: "xdstp://a/envoy.config.cluster.v3.Cluster/alias"}
	for own, want := range map[string]bool{
		"xdstp://a/envoy.config.cluster.v3.Cluster/open":              true,
		"xdstp://a/envoy.config.cluster.v3.Cluster/%68idden":          false,
		"xdstp://drops/envoy.config.cluster.v3.Cluster/x?b=2&a=1":     false,
		"xdstp://PAY.example.com/envoy.config.cluster.v3.Cluster/x":   false,
		"xdstp://pay.example.com/envoy.config.cluster.v3.Cluster/%zz": false,
		"xdstp://elsewhere/envoy.config.cluster.v3.Cluster/open":      true,
		"an-old-style-name": true,
	} {
		if err := names.ClientRights.MayHaveOwn(key, own); (err == nil) != want {
			t.Errorf("%s: %v", own, err)
		}
	}
}

func TestANameThatCannotBeParsedIsDeniedByRulesThatReadNames(t *testing.T) {
	names := restrictedNames(t, restricted, nil)
	const typeURL = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	for _, name := range []string{
		"xdstp://a/envoy.config.cluster.v3.Cluster/hidden#entry=%zz",
		"xdstp://a/envoy.config.cluster.v3.Cluster/x#alt=y",
	} {
		if _, err := urn.ParseURL(name); err == nil {
			t.Fatalf("%s can be parsed", name)
		}
		k := Requested{Key: cache.Key{Scope: cache.Scope{Authority: "a"}, TypeURL: typeURL, Name: name}}
		if err := names.ClientRights.May(k); err == nil {
			t.Errorf("%s: allowed", name)
		}
	}
}
