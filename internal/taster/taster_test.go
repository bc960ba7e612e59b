package taster

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstreamsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

func tasteOf(t testing.TB, m proto.Message) *Verdict {
	t.Helper()
	return Of(xdstype.Prefix + string(m.ProtoReflect().Descriptor().FullName())).Taste(encode(t, m))
}

func TestWhatEnvoyWouldReject(t *testing.T) {
	for _, tt := range []struct {
		name     string
		resource proto.Message
		want     string
	}{
		{"a good cluster", goodCluster(), ""},
		{"a percentage", cluster(func(c *clusterv3.Cluster) {
			c.OutlierDetection = &clusterv3.OutlierDetection{MaxEjectionPercent: uint32Value(101)}
		}), "Cluster.OutlierDetection.MaxEjectionPercent: value must be less than or equal to 100"},
		{"an element of a list", endpoints(locality("a", 0, lbEndpoint("", 80))), "ClusterLoadAssignment.Endpoints[0].LbEndpoints[0].Endpoint.Address.SocketAddress.Address: value length must be at least 1 runes"},
		{"a duration, whose error has a cause", cluster(func(c *clusterv3.Cluster) { c.ConnectTimeout = &durationpb.Duration{Nanos: -1, Seconds: 1} }), "Cluster.ConnectTimeout: value is not a valid duration"},
		{"what is in an Any", clientListener(func(h *hcmv3.HttpConnectionManager) { h.StatPrefix = "" }), "HttpConnectionManager.StatPrefix: value length must be at least 1 runes"},
		{"what is in an Any in a map", cluster(func(c *clusterv3.Cluster) {
			c.TypedExtensionProtocolOptions = map[string]*anypb.Any{"o": pack(&upstreamsv3.HttpProtocolOptions{})}
		}), "HttpProtocolOptions.UpstreamProtocolOptions: value is required"},
		{"what is in an Any in an Any", filtered(optional(httpFilterWith("lua", pack(&luav3.Lua{StatPrefix: "x", DefaultSourceCode: &corev3.DataSource{}})))), "Lua.DefaultSourceCode.Specifier: value is required"},
		{"garbage in an Any", cluster(func(c *clusterv3.Cluster) {
			c.TypedExtensionProtocolOptions = map[string]*anypb.Any{"o": garbage(&upstreamsv3.HttpProtocolOptions{})}
		}), "a field of type Any is no envoy.extensions.upstreams.http.v3.HttpProtocolOptions"},
		{"a type that nobody knows in an Any", cluster(func(c *clusterv3.Cluster) {
			c.TypedExtensionProtocolOptions = map[string]*anypb.Any{"o": {TypeUrl: "type.googleapis.com/envoy.acme.Options", Value: []byte("\xff")}}
		}), ""},
		{"metadata that is for whoever knows it", cluster(func(c *clusterv3.Cluster) {
			c.Metadata = &corev3.Metadata{TypedFilterMetadata: map[string]*anypb.Any{"o": garbage(&luav3.Lua{})}}
		}), ""},
		{"another type", &tlsv3.Secret{Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{PrivateKey: &corev3.DataSource{}}}}, "Secret.TlsCertificate.PrivateKey.Specifier: value is required"},
	} {
		v := tasteOf(t, tt.resource)
		if v == nil {
			v = &Verdict{}
		}
		if v.Envoy != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, v.Envoy, tt.want)
		}
	}
}

// A resource that neither family can decode is refused in every mode except off. A part that one family ignores
// passes.
func TestModes(t *testing.T) {
	badForEnvoy := encode(t, cluster(func(c *clusterv3.Cluster) { c.ConnectTimeout = &durationpb.Duration{} }))
	badForGRPC := encode(t, cluster(func(c *clusterv3.Cluster) { c.LbPolicy = clusterv3.Cluster_RANDOM }))
	for _, tt := range []struct {
		name, typeURL string
		value         []byte
		refused       map[Mode]bool
		unreadable    bool
	}{
		{"good", xdstype.ClusterV3, encode(t, goodCluster()), nil, false},
		{"no message of its type", xdstype.ClusterV3, []byte{0x0a, 0x02, 0xff, 0xff}, map[Mode]bool{Warn: true, Refuse: true}, true},
		{"no message at all", xdstype.ClusterV3, []byte{0x07}, map[Mode]bool{Warn: true, Refuse: true, Off: true}, true},
		{"no message at all, of no known type", xdstype.Prefix + "acme.Widget", []byte{0x07}, map[Mode]bool{Warn: true, Refuse: true, Off: true}, true},
		{"of no known type", xdstype.Prefix + "acme.Widget", []byte{0x0a, 0x01, 0xff}, nil, false},
		{"bad for Envoy", xdstype.ClusterV3, badForEnvoy, map[Mode]bool{Refuse: true}, false},
		{"bad for gRPC", xdstype.ClusterV3, badForGRPC, map[Mode]bool{Refuse: true}, false},
		{"garbage that both read", xdstype.ListenerV3, encode(t, apiListener(garbage(&hcmv3.HttpConnectionManager{}))), map[Mode]bool{Warn: true, Refuse: true}, true},
		{"garbage that gRPC ignores", xdstype.ClusterV3, encode(t, cluster(func(c *clusterv3.Cluster) {
			c.TypedExtensionProtocolOptions = map[string]*anypb.Any{"o": garbage(&upstreamsv3.HttpProtocolOptions{})}
		})), map[Mode]bool{Refuse: true}, false},
	} {
		for _, mode := range []Mode{Warn, Refuse, Off} {
			v := mode.Taste(Of(tt.typeURL), tt.value)
			if got := mode.Refuses(v); got != tt.refused[mode] {
				t.Errorf("%s, mode %d: refused is %t, want %t (%+v)", tt.name, mode, got, tt.refused[mode], v)
			}
			if mode != Off && (v != nil && v.Unreadable != "") != tt.unreadable {
				t.Errorf("%s, mode %d: got %+v, want unreadable to be %t", tt.name, mode, v, tt.unreadable)
			}
		}
	}
}

// No reason quotes a value, whichever field it is in.
func TestReasonsQuoteNoSecrets(t *testing.T) {
	const marker = "s3cr3t-value"
	inline := &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: marker}}
	withSecret := func(c *clusterv3.Cluster) {
		c.TransportSocket = socketWith(pack(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{PrivateKey: inline}}}}))
	}
	key := func(length int) string { return marker + strings.Repeat("x", length) }
	resources := []proto.Message{
		cluster(withSecret),
		cluster(func(c *clusterv3.Cluster) {
			withSecret(c)
			c.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{key(0): {}}}
			c.TypedExtensionProtocolOptions = map[string]*anypb.Any{key(1): garbage(&upstreamsv3.HttpProtocolOptions{})}
		}),
		&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secrets: map[string]*corev3.DataSource{marker: {}}}}},
		&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{PrivateKey: inline, Password: &corev3.DataSource{Specifier: &corev3.DataSource_EnvironmentVariable{}}}}},
		&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_SessionTicketKeys{SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{inline, {}}}}},
		routes(func(r *routev3.RouteConfiguration) {
			r.RequestHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "\n" + marker, Value: marker}}}
		}),
		route(func(r *routev3.Route) {
			r.Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex("(" + marker)}
		}),
		endpoints(locality(marker, 0, weighted(lbEndpoint(marker, 80), 0), lbEndpoint(marker, 80), lbEndpoint(marker, 80))),
	}
	found := 0
	for _, m := range resources {
		v := tasteOf(t, m)
		if v == nil {
			t.Errorf("nothing is wrong with %v", m)
			continue
		}
		found++
		if strings.Contains(fmt.Sprintf("%+v %s", v, v.Reason()), marker) {
			t.Errorf("a reason quotes a value: %s", v.Reason())
		}
	}
	// A map key in the path identifies the entry, if the resource has no secrets.
	v := tasteOf(t, cluster(func(c *clusterv3.Cluster) {
		c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: "c", NamedEndpoints: map[string]*endpointv3.Endpoint{"blue": {Address: address("", 1)}}}
	}))
	if want := "Cluster.LoadAssignment.NamedEndpoints[blue].Address.SocketAddress.Address: value length must be at least 1 runes"; v == nil || v.Envoy != want {
		t.Errorf("got %+v, want %q", v, want)
	}
	if found == 0 {
		t.Error("no reasons")
	}
}

// quickly fails the test if f takes longer than what is made for it would by far.
func quickly(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s takes a minute", what)
	}
}

func TestWhatIsMadeToCostIsBounded(t *testing.T) {
	t.Run("messages nested in each other", func(t *testing.T) {
		route := func(depth int) []byte {
			var predicate []byte // HeaderMatcher has none, so an RBAC-like chain: a Struct in a Struct
			for range depth {
				value := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), predicate)
				entry := protowire.AppendBytes(protowire.AppendTag(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "k"), 2, protowire.BytesType), value)
				predicate = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry)
			}
			entry := protowire.AppendBytes(protowire.AppendTag(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "k"), 2, protowire.BytesType), predicate)
			metadata := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry)
			return protowire.AppendBytes(protowire.AppendTag(encode(t, goodCluster()), 25, protowire.BytesType), metadata)
		}
		if v := Of(xdstype.ClusterV3).Taste(route(20)); v != nil {
			t.Errorf("20 levels: %+v", v)
		}
		if v := Of(xdstype.ClusterV3).Taste(route(200)); v == nil || v.Envoy != errTooDeep || v.Unreadable != "" {
			t.Errorf("200 levels: %+v", v)
		}
		quickly(t, "a million levels", func() {
			if v := Of(xdstype.ClusterV3).Taste(route(5000)); v == nil || v.Unreadable == "" {
				t.Errorf("5000 levels: %+v", v)
			}
		})
	})
	t.Run("Anys in each other", func(t *testing.T) {
		inner := pack(&upstreamsv3.HttpProtocolOptions{}) // which is invalid
		nest := func(depth int) proto.Message {
			a := inner
			for range depth {
				a = pack(&routev3.FilterConfig{Config: a, IsOptional: true})
			}
			return overrides(a)
		}
		if v := tasteOf(t, nest(anyDepth-2)); v == nil || v.Envoy == "" {
			t.Errorf("it is not found: %+v", v)
		}
		quickly(t, "Anys in each other", func() { _ = tasteOf(t, nest(500)) })
	})
	t.Run("messages of two bytes", func(t *testing.T) {
		value := encode(t, &endpointv3.ClusterLoadAssignment{ClusterName: "c"})
		for range mostMessages + 1 {
			value = append(value, 0x12, 0) // an empty LocalityLbEndpoints
		}
		v := Of(xdstype.EndpointsV3).Taste(value)
		if v == nil || !strings.Contains(v.Unreadable, errTooMany.Error()) {
			t.Errorf("got %+v", v)
		}
	})
	t.Run("filter chains", func(t *testing.T) {
		var ranges []*corev3.CidrRange
		for i := range 2000 {
			ranges = append(ranges, &corev3.CidrRange{AddressPrefix: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String(), PrefixLen: uint32Value(32)})
		}
		match := &listenerv3.FilterChainMatch{PrefixRanges: ranges, SourcePrefixRanges: ranges}
		for i := range 2000 {
			match.SourcePorts = append(match.SourcePorts, uint32(i+1))
		}
		quickly(t, "8 billion matches", func() { _ = tasteOf(t, matching(match, match)) })
		var raws []*listenerv3.FilterChainMatch
		for _, r := range ranges {
			raws = append(raws, &listenerv3.FilterChainMatch{PrefixRanges: []*corev3.CidrRange{r}, TransportProtocol: rawBuffer})
		}
		quickly(t, "chains for raw_buffer", func() { _ = tasteOf(t, matching(raws...)) })
	})
	t.Run("regular expressions", func(t *testing.T) {
		quickly(t, "regular expressions", func() {
			_ = tasteOf(t, routes(func(r *routev3.RouteConfiguration) {
				for range 100 {
					more := goodRoute()
					more.Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex(strings.Repeat("(a|b{1,9})*", 10_000))}
					r.VirtualHosts[0].Routes = append(r.VirtualHosts[0].Routes, more)
				}
			}))
		})
	})
	t.Run("type URLs", func(t *testing.T) {
		size := func() (n int) {
			knownTypes.Get().Range(func(any, any) bool { n++; return true })
			return n
		}
		before := size()
		for i := range 1000 {
			Of(fmt.Sprintf("made-up-%d/acme.Widget%d", i, i))
			Of(fmt.Sprintf("made-up-%d/envoy.config.cluster.v3.Cluster", i))
		}
		if size() > before+1 {
			t.Errorf("%d types are kept", size()-before)
		}
	})
}

// A panic of a validator is a finding, and does not end the process.
func TestAPanicIsAFinding(t *testing.T) {
	of := Of(xdstype.ClusterV3)
	panics := &known{name: of.name, message: of.message, grpc: func(*tasting, proto.Message) *violation { panic(errors.New("s3cr3t")) }}
	panics.idle.New = of.idle.New
	v := Type{of.url, panics}.Taste(encode(t, goodCluster()))
	if v == nil || !strings.Contains(v.Reason(), "panic") || strings.Contains(v.Reason(), "s3cr3t") || Warn.Refuses(v) || !Refuse.Refuses(v) {
		t.Errorf("got %+v", v)
	}
}

// For any input, tasting ends, and its reasons are short texts.
func FuzzTaste(f *testing.F) {
	for i, e := range examples() {
		b, err := proto.Marshal(e.resource)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i%4), b)
	}
	types := []string{xdstype.ClusterV3, xdstype.EndpointsV3, xdstype.RouteV3, xdstype.ListenerV3, xdstype.SecretV3, xdstype.ScopedRouteV3, xdstype.ExtensionConfigV3, xdstype.Prefix + "acme.Widget"}
	f.Fuzz(func(t *testing.T, of uint8, value []byte) {
		typeURL := types[int(of)%len(types)]
		v := Of(typeURL).Taste(value)
		if v == nil {
			return
		}
		if v.Unreadable == "" && v.Envoy == "" && v.GRPC == "" {
			t.Error("a verdict of nothing")
		}
		if strings.Contains(v.Envoy, "panic") {
			t.Errorf("a validator panics: %s", v.Envoy)
		}
		if len(v.Reason()) > 8<<10 {
			t.Errorf("a reason of %d bytes", len(v.Reason()))
		}
		if again := Of(typeURL).Taste(value); again == nil || (again.Unreadable == "") != (v.Unreadable == "") {
			t.Errorf("first %+v, then %+v", v, again)
		}
	})
}
