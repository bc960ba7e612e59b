package resource

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// claims returns the claims of a resource in text form.
func claims(t *testing.T, typeURL, name string, m proto.Message, text string) []uint64 {
	t.Helper()
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	value, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return New(Spec{Name: name, Version: "1", TypeURL: typeURL, Value: value}).Claims()
}

// Two Listeners conflict if Envoy would refuse the second.
func TestListenersClaimTheirAddresses(t *testing.T) {
	of := func(text string) []uint64 { return claims(t, xdstype.ListenerV3, "l", &listenerv3.Listener{}, text) }
	socket := func(text string) string { return "address { socket_address { " + text + " } } " }
	for _, test := range []struct {
		a, b      string
		conflicts bool
	}{
		{socket(`address: "0.0.0.0" port_value: 80`), socket(`address: "0.0.0.0" port_value: 80`) + `stat_prefix: "x"`, true},
		{socket(`address: "0.0.0.0" port_value: 80`), socket(`address: "0.0.0.0" port_value: 81`), false},
		{socket(`address: "0.0.0.0" port_value: 80`), socket(`address: "127.0.0.1" port_value: 80`), false},
		{socket(`address: "0.0.0.0" port_value: 80`), socket(`address: "0.0.0.0" port_value: 80 protocol: UDP`), false},
		{socket(`address: "::1" port_value: 80`), socket(`address: "0:0:0:0:0:0:0:1" port_value: 80`), true},
		{socket(`address: "0.0.0.0" port_value: 80`), socket(`address: "0.0.0.0" port_value: 80 network_namespace_filepath: "/run/n"`), false},
		{socket(`address: "0.0.0.0" port_value: 0`), socket(`address: "0.0.0.0" port_value: 0`), false},
		{socket(`address: "0.0.0.0" port_value: 0`) + "bind_to_port {}", socket(`address: "0.0.0.0" port_value: 0`) + "deprecated_v1 { bind_to_port {} }", true},
		{socket(`address: "0.0.0.0" port_value: 0`) + "bind_to_port { value: true }", socket(`address: "0.0.0.0" port_value: 0`) + "bind_to_port { value: true }", false},
		{socket(`address: "0.0.0.0" port_value: 80`) + "bind_to_port {}", socket(`address: "0.0.0.0" port_value: 80`), true},
		{socket(`address: "localhost" port_value: 80`), socket(`address: "localhost" port_value: 80`), false},
		{
			socket(`address: "0.0.0.0" port_value: 80`) + `additional_addresses { address { socket_address { address: "::" port_value: 80 } } }`,
			socket(`address: "::" port_value: 80`), true,
		},
		{`address { pipe { path: "/a" } }`, `address { pipe { path: "/a" mode: 3 } }`, true},
		{`address { pipe { path: "/a" } }`, `address { pipe { path: "/b" } }`, false},
		{`api_listener {}`, `api_listener {}`, false},
		{"", "", false},
	} {
		a, b := of(test.a), of(test.b)
		if got := slices.ContainsFunc(a, func(c uint64) bool { return slices.Contains(b, c) }); got != test.conflicts {
			t.Errorf("%q and %q conflict: %t", test.a, test.b, got)
		}
	}
	if got := of(socket(`address: "0.0.0.0" port_value: 80`) + `additional_addresses { address { pipe { path: "/a" } } }`); len(got) != 2 {
		t.Errorf("two addresses are %d claims", len(got))
	}
}

func TestScopesClaimTheirKeysAndHostsTheirDomains(t *testing.T) {
	scope := func(text string) []uint64 {
		return claims(t, xdstype.ScopedRouteV3, "s", &routev3.ScopedRouteConfiguration{}, text)
	}
	host := func(name, text string) []uint64 {
		return claims(t, xdstype.VirtualHostV3, name, &routev3.VirtualHost{}, text)
	}
	one := `key { fragments { string_key: "a" } fragments { string_key: "b" } }`
	for what, test := range map[string]struct {
		a, b []uint64
		same bool
	}{
		"one key":                   {scope(one + `name: "x" route_configuration_name: "r"`), scope(one), true},
		"two keys":                  {scope(one), scope(`key { fragments { string_key: "ab" } }`), false},
		"one domain":                {host("r/a", `name: "r/a" domains: "A.example"`), host("r/b", `domains: "a.example" name: "r/b"`), true},
		"two domains":               {host("r/a", `domains: "a"`), host("r/b", `domains: "b"`), false},
		"two RouteConfigurations":   {host("q/a", `domains: "*"`), host("r/a", `domains: "*"`), false},
		"a scope and no key at all": {scope(one), scope(`name: "x"`), false},
	} {
		if got := slices.Equal(test.a, test.b); got != test.same || len(test.a) != 1 {
			t.Errorf("%s: %v and %v", what, test.a, test.b)
		}
	}
	if got := host("r/a", `domains: ["a", "b"]`); len(got) != 2 {
		t.Errorf("two domains are %d claims", len(got))
	}
}

// What nobody can read claims nothing, and neither do other types.
func TestWhatCannotBeReadClaimsNothing(t *testing.T) {
	value, err := proto.Marshal(&listenerv3.Listener{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "0.0.0.0", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	of := func(typeURL string, value []byte) []uint64 {
		return New(Spec{Name: "l", Version: "1", TypeURL: typeURL, Value: value}).Claims()
	}
	if len(of(xdstype.ListenerV3, value)) != 1 || len(of(xdstype.ListenerV2, value)) != 1 {
		t.Error("a Listener has no claim")
	}
	if got := of(xdstype.ListenerV3, append(slices.Clone(value), 0xff)); got != nil {
		t.Errorf("a broken Listener claims %v", got)
	}
	if got := of(xdstype.ClusterV3, value); got != nil {
		t.Errorf("a Cluster claims %v", got)
	}
	// An address in two parts is one address.
	parts := wire.AppendBytes(wire.AppendBytes(nil, listenerAddress, []byte{0x0a, 0x09, 0x12, 0x07, '0', '.', '0', '.', '0', '.', '0'}), listenerAddress, []byte{0x0a, 0x02, 0x18, 80})
	if !slices.Equal(of(xdstype.ListenerV3, parts), of(xdstype.ListenerV3, value)) {
		t.Error("an address in two parts is another one")
	}
}

func BenchmarkClaims(b *testing.B) {
	l := &listenerv3.Listener{Name: "l", Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "0.0.0.0", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80},
	}}}}
	for range 20 {
		l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{Name: "some chain", Filters: []*listenerv3.Filter{{Name: "filter"}}})
	}
	value, err := proto.Marshal(l)
	if err != nil {
		b.Fatal(err)
	}
	r := New(Spec{Name: "l", Version: "1", TypeURL: xdstype.ListenerV3, Value: value})
	b.ReportAllocs()
	for b.Loop() {
		r.Claims()
	}
}
