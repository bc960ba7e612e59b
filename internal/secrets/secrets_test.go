package secrets_test

import (
	"fmt"
	"strings"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	corev2 "github.com/envoyproxy/go-control-plane/envoy/api/v2/core"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	basicauthv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/basic_auth/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	_ "github.com/xds-relay/xds-relay/client/render" // all of Envoy's messages
	"github.com/xds-relay/xds-relay/internal/secrets"
)

const marker = "m4rk3r"

const prefix = "type.googleapis.com/"

func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	content, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func inline(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
}

func inlineBytes(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(text)}}
}

// certificate has its key in a file, or inline.
func certificate(key *corev3.DataSource) *anypb.Any {
	content, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline("chain"), PrivateKey: key}},
	}})
	if err != nil {
		panic("a message that cannot be encoded")
	}
	return content
}

func socket(content *anypb.Any) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: "a/b", TransportSocket: &corev3.TransportSocket{
		Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: content},
	}}
}

func typedStruct(typeName string, fields map[string]any) *xdstypev3.TypedStruct {
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic("a value that is not of JSON")
	}
	return &xdstypev3.TypedStruct{TypeUrl: prefix + typeName, Value: s}
}

// text prints a message, as `get` does.
func text(t *testing.T, m proto.Message) string {
	t.Helper()
	b, err := protojson.MarshalOptions{UseProtoNames: true, Resolver: secrets.Types{}}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), " ", "")
}

func TestSecretsAreFoundAndMasked(t *testing.T) {
	for _, tt := range []struct {
		about string
		m     proto.Message
		holds bool
		shows string // a part of what is printed
	}{
		{"a Secret", &tlsv3.Secret{Name: "a", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inlineBytes(marker), PrivateKey: inline(marker), Password: inline(marker), OcspStaple: inline(marker),
		}}}, true, `"certificate_chain":{"inline_string":"[redacted]"}`},
		{"a Secret with the roots of a CA", &tlsv3.Secret{Name: "a", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline(marker),
		}}}, true, `"trusted_ca":{"inline_string":"[redacted]"}`},
		{"a Secret with files", &tlsv3.Secret{Name: "a", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "key.pem"}},
		}}}, true, `"filename":"key.pem"`},
		{"a key inside a Cluster", socket(certificate(inline(marker))), true, `"certificate_chain":{"inline_string":"chain"},"private_key":{"inline_string":"[redacted]"}`},
		{"a key as bytes inside a Cluster", socket(certificate(inlineBytes(marker))), true, `"private_key":{"inline_string":"[redacted]"}`},
		{"a key in a file", socket(certificate(&corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "key.pem"}})), false, `"filename":"key.pem"`},
		{"an empty key", socket(certificate(&corev3.DataSource{})), false, `"private_key":{}`},
		{"a Cluster without", &clusterv3.Cluster{Name: "a/b"}, false, `"name":"a/b"`},
		{"a key without an Any", &clusterv3.Cluster{EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{GrpcServices: []*corev3.GrpcService{{
				TargetSpecifier: &corev3.GrpcService_GoogleGrpc_{GoogleGrpc: &corev3.GrpcService_GoogleGrpc{
					ChannelCredentials: &corev3.GrpcService_GoogleGrpc_ChannelCredentials{CredentialSpecifier: &corev3.GrpcService_GoogleGrpc_ChannelCredentials_SslCredentials{
						SslCredentials: &corev3.GrpcService_GoogleGrpc_SslCredentials{PrivateKey: inline(marker)},
					}},
				}},
			}}}},
		}}}, true, "[redacted]"},
		{"a token that is not marked", &corev3.GrpcService_GoogleGrpc_CallCredentials{
			CredentialSpecifier: &corev3.GrpcService_GoogleGrpc_CallCredentials_AccessToken{AccessToken: marker},
		}, true, `"access_token":"[redacted]"`},
		{"inside a redirect's neighbour, an inline entry", &xdscorev3.CollectionEntry{ResourceSpecifier: &xdscorev3.CollectionEntry_InlineEntry_{
			InlineEntry: &xdscorev3.CollectionEntry_InlineEntry{Name: "a", Resource: pack(t, socket(certificate(inline(marker))))},
		}}, true, "[redacted]"},
		{"inside a Resource", &discoveryv3.Resource{Name: "a", Resource: pack(t, socket(certificate(inline(marker))))}, true, "[redacted]"},
		{"inside an Any with another prefix", socket(&anypb.Any{TypeUrl: "example.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", Value: certificate(inline(marker)).Value}), true, "[redacted]"},
		{"inside the metadata of an endpoint", &endpointv3.ClusterLoadAssignment{ClusterName: "a", Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{Metadata: &corev3.Metadata{TypedFilterMetadata: map[string]*anypb.Any{"x": certificate(inline(marker))}}}},
		}}}, true, "[redacted]"},
		{"an endpoint without", &endpointv3.ClusterLoadAssignment{ClusterName: "a"}, false, "cluster_name"},
		{"in a TypedStruct", socket(pack(t, typedStruct("envoy.extensions.filters.http.basic_auth.v3.BasicAuth", map[string]any{
			"users": map[string]any{"inline_string": marker}, "forwardUsernameHeader": "x-user",
		}))), true, `"forwardUsernameHeader":"x-user"`},
		{"in a TypedStruct, deeper", socket(pack(t, typedStruct("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", map[string]any{
			"sni": "a", "commonTlsContext": map[string]any{"tlsCertificates": []any{map[string]any{"privateKey": map[string]any{"inlineBytes": marker, "filename": "f"}}}},
		}))), true, `"filename":"f"`},
		{"in an Any in a TypedStruct", socket(pack(t, typedStruct("envoy.config.cluster.v3.Cluster", map[string]any{
			"name": "n", "transport_socket": map[string]any{"typed_config": map[string]any{
				"@type": prefix + "envoy.extensions.filters.http.basic_auth.v3.BasicAuth", "users": map[string]any{"inline_string": marker},
			}},
		}))), true, `"name":"n"`},
		{"a Secret as a TypedStruct", socket(pack(t, typedStruct("envoy.extensions.transport_sockets.tls.v3.Secret", map[string]any{
			"name": "n", "validation_context": map[string]any{"trusted_ca": map[string]any{"inline_string": marker}},
		}))), true, `"trusted_ca":{"inline_string":"[redacted]"}`},
		{"a field that is not known in a TypedStruct", socket(pack(t, typedStruct("envoy.config.cluster.v3.Cluster", map[string]any{"unheard": marker}))), false, `"unheard":"`},
		{"a TypedStruct of a type that is not known", socket(pack(t, typedStruct("example.Unheard", map[string]any{"a": marker}))), false, `"hidden":"`},
		{"an Any of a type that is not known", socket(&anypb.Any{TypeUrl: prefix + "example.Unheard", Value: []byte(marker)}), false, `"hidden":"6bytesthatmayhavesecretsinthem"`},
		{"an Any that cannot be decoded", socket(&anypb.Any{TypeUrl: prefix + "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", Value: []byte("\xff" + marker)}), true, `"hidden":"7bytesthatmayhavesecretsinthem"`},
		{"metadata by the names of its keys", &listenerv3.Listener{Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"a": typedStruct("", map[string]any{"shown": "yes", "list": []any{map[string]any{"password": marker, "privateKey": map[string]any{"a": marker}}}}).Value,
		}}}, false, `"shown":"yes"`},
		{"a DataSource of version 2", &corev2.GrpcService_GoogleGrpc_SslCredentials{PrivateKey: &corev2.DataSource{Specifier: &corev2.DataSource_InlineBytes{InlineBytes: []byte(marker)}}}, true, "[redacted]"},
		{"users", &basicauthv3.BasicAuth{Users: inline(marker)}, true, "[redacted]"},
	} {
		t.Run(tt.about, func(t *testing.T) {
			content := pack(t, tt.m)
			if got := secrets.Holds(content.TypeUrl, content.Value); got != tt.holds {
				t.Errorf("it holds a secret: %t, want %t", got, tt.holds)
			}
			before := proto.Clone(content)
			got := text(t, secrets.Masked(content))
			if strings.Contains(got, marker) || strings.Contains(got, "bTRyazNy") || !strings.Contains(got, tt.shows) {
				t.Errorf("printed is %s, want in it %s", got, tt.shows)
			}
			if !proto.Equal(content, before) {
				t.Error("the message was changed")
			}
			if all := text(t, secrets.Unmasked(content)); tt.holds && strings.Contains(all, "[redacted]") {
				t.Errorf("with secrets, printed is %s", all)
			}
		})
	}
}

func TestSecretsOfTypesThatAreNotKnown(t *testing.T) {
	for typeURL, want := range map[string]bool{
		prefix + "envoy.extensions.transport_sockets.tls.v3.Secret": true,
		"a/envoy.api.v2.auth.Secret":                                true,
		prefix + "example.Unheard":                                  false,
		"":                                                          false,
	} {
		if got := secrets.Holds(typeURL, []byte("\xff\xff/")); got != want {
			t.Errorf("%s: got %t", typeURL, got)
		}
	}
}

// Every sensitive field of every message that the binary knows is found, and masked: by the
// marks alone, and not by the list of those that somebody has thought of.
func TestEverySensitiveFieldIsMasked(t *testing.T) {
	fields := 0
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		if mt.Descriptor().FullName() == "google.protobuf.Any" || mt.Descriptor().IsMapEntry() {
			return true
		}
		for i := range mt.Descriptor().Fields().Len() {
			field := mt.Descriptor().Fields().Get(i)
			if !strings.Contains(fmt.Sprint(field.Options()), "sensitive]:true") {
				continue
			}
			fields++
			m := mt.New()
			fill(t, m, field)
			// As far away as may be: in a filter of a filter chain of a Listener.
			for _, outer := range []proto.Message{m.Interface(), &listenerv3.Listener{FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{
				{ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, m.Interface())}},
			}}}}} {
				content := pack(t, outer)
				if !secrets.Holds(content.TypeUrl, content.Value) {
					t.Errorf("%s in %s is not found", field.FullName(), content.TypeUrl)
				}
				if got := text(t, secrets.Masked(content)); strings.Contains(got, marker) || strings.Contains(got, "bTRyazNy") {
					t.Errorf("%s is printed: %s", field.FullName(), got)
				}
			}
		}
		return true
	})
	if fields < 30 {
		t.Errorf("%d sensitive fields were found, want more", fields)
	}
}

// fill sets a field to something that has the marker in it.
func fill(t *testing.T, m protoreflect.Message, field protoreflect.FieldDescriptor) {
	t.Helper()
	switch {
	case field.IsMap() && field.MapValue().Message() == nil:
		m.Mutable(field).Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString(marker))
	case field.IsMap():
		value := m.Mutable(field).Map().NewValue()
		fillMessage(t, value.Message())
		m.Mutable(field).Map().Set(protoreflect.ValueOfString("key").MapKey(), value)
	case field.IsList():
		value := m.Mutable(field).List().NewElement()
		fillMessage(t, value.Message())
		m.Mutable(field).List().Append(value)
	case field.Message() != nil:
		fillMessage(t, m.Mutable(field).Message())
	case field.Kind() == protoreflect.StringKind:
		m.Set(field, protoreflect.ValueOfString(marker))
	case field.Kind() == protoreflect.BytesKind:
		m.Set(field, protoreflect.ValueOfBytes([]byte(marker)))
	default:
		t.Fatalf("%s is of a kind that the test does not know", field.FullName())
	}
}

func fillMessage(t *testing.T, m protoreflect.Message) {
	t.Helper()
	switch known := m.Interface().(type) {
	case *anypb.Any:
		proto.Merge(known, pack(t, structpb.NewStringValue(marker)))
	case *structpb.Struct:
		known.Fields = map[string]*structpb.Value{"a": structpb.NewStringValue(marker)}
	default:
		for i := range m.Descriptor().Fields().Len() {
			field := m.Descriptor().Fields().Get(i)
			if field.Kind() == protoreflect.StringKind && field.Cardinality() != protoreflect.Repeated && field.Name() != "filename" && field.Name() != "environment_variable" {
				m.Set(field, protoreflect.ValueOfString(marker))
			}
		}
	}
}
