package naming

import (
	"errors"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/chain"
)

func TestXdstpNamesAreKeptUnderWhatTheyName(t *testing.T) {
	cfg, err := configs.Parse("relay.yaml", []byte(`
listeners: [{address: "127.0.0.1:0"}]
authorities: [{name: a, directory: files}]
`))
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "type.googleapis.com/envoy.config."
	names := &Names{Router: authority.New(cfg)}
	for _, tt := range []struct {
		rule, typeURL, name string
		wantType, want      string
		set                 bool
		err                 string
	}{
		{"a name", "cluster.v3.Cluster", "xdstp://a/envoy.config.cluster.v3.Cluster/x?b=1&a=2",
			"cluster.v3.Cluster", "xdstp://a/envoy.config.cluster.v3.Cluster/x?a=2&b=1", false, ""},
		{"a glob", "cluster.v3.Cluster", "xdstp://a/envoy.config.cluster.v3.Cluster/%66oo/*?b=1&a=2",
			"cluster.v3.Cluster", "xdstp://a/envoy.config.cluster.v3.Cluster/foo/*?a=2&b=1", true, ""},
		{"a list collection", "listener.v3.ListenerCollection", "xdstp://a/envoy.config.listener.v3.ListenerCollection/x",
			"listener.v3.ListenerCollection", "xdstp://a/envoy.config.listener.v3.ListenerCollection/x", false, ""},
		{"a list collection, requested as its members: the same", "listener.v3.Listener", "xdstp://a/envoy.config.listener.v3.ListenerCollection/x",
			"listener.v3.ListenerCollection", "xdstp://a/envoy.config.listener.v3.ListenerCollection/x", false, ""},
		{"a glob of another type", "listener.v3.Listener", "xdstp://a/envoy.config.listener.v3.ListenerCollection/x/*",
			"", "", false, `xdstp name "xdstp://a/envoy.config.listener.v3.ListenerCollection/x/*" is of type envoy.config.listener.v3.ListenerCollection, but was requested as envoy.config.listener.v3.Listener`},
		{"another type's list collection", "cluster.v3.Cluster", "xdstp://a/envoy.config.listener.v3.ListenerCollection/x",
			"cluster.v3.Cluster", "xdstp://a/envoy.config.listener.v3.ListenerCollection/x", false, ""},
		{"a name of another type: it is asked for under this one", "cluster.v3.Cluster", "xdstp://a/envoy.config.listener.v3.Listener/%78",
			"cluster.v3.Cluster", "xdstp://a/envoy.config.listener.v3.Listener/x", false, ""},
		{"what is no name is requested as it is", "cluster.v3.Cluster", "xdstp://a/%zz//x?y",
			"cluster.v3.Cluster", "xdstp://a/%zz//x?y", false, ""},
		{"what is no name, of nobody who is configured", "cluster.v3.Cluster", "xdstp://b/%zz",
			"", "", false, `xdstp name "xdstp://b/%zz": bad escape "%zz" (want % and two hexadecimal digits, or %25 for the character) at offset 10`},
		{"what is no name, of nobody at all", "cluster.v3.Cluster", "xdstp:a/x",
			"", "", false, `xdstp name "xdstp:a/x": no // after the scheme (want xdstp://authority/type/id) at offset 6`},
	} {
		k, err := names.Key(prefix+tt.typeURL, tt.name)
		if tt.err != "" {
			if e := (*cache.Error)(nil); !errors.As(err, &e) || e.Message != tt.err {
				t.Errorf("%s: got %v, want %s", tt.rule, err, tt.err)
			}
			continue
		}
		want := cache.Key{Scope: cache.Scope{Authority: "a"}, TypeURL: prefix + tt.wantType, Name: tt.want}
		if err != nil || k != want || k.IsSet() != tt.set {
			t.Errorf("%s: got %+v, %v, want %+v", tt.rule, k, err, want)
		}
	}
}

// The relay notes a client that is a relay only for the scopes that the client uses, and not for those that it was
// refused.
func TestARelayIsNotedForTheScopesThatItUses(t *testing.T) {
	chains := chain.NewTable[cache.Scope]("relay-1", time.Minute)
	n := &Names{Relay: &RelayClient{
		through: chain.Chain{Relay: true, IDs: []string{"behind"}}, chains: chains, used: map[cache.Scope]usedScope{},
	}}
	a, b := cache.Scope{Authority: "a"}, cache.Scope{Authority: "a", Params: cache.Params{"env": "prod"}.String()}
	n.Enter(a)
	n.Enter(b)
	n.Leave(a)
	if len(n.Relay.used) != 1 {
		t.Errorf("%d scopes are joined, want the one that is still used with parameters", len(n.Relay.used))
	}
	n.Leave(b)
	if len(n.Relay.used) != 0 {
		t.Errorf("%d scopes are joined, want none", len(n.Relay.used))
	}
}
