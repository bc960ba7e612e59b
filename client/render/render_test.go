package render

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"sigs.k8s.io/yaml"
)

const prefix = "type.googleapis.com/"

func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	content, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func resource(content *anypb.Any) *discoveryv3.Resource {
	return &discoveryv3.Resource{Name: "a", Version: "7", Resource: content}
}

func inline(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
}

func inlineBytes(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(text)}}
}

func socket(content *anypb.Any) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: "a", TransportSocket: &corev3.TransportSocket{
		Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: content},
	}}
}

func TestYAMLOf(t *testing.T) {
	key := "-----BEGIN KEY-----\nhush\n"
	certificate := &tlsv3.TlsCertificate{
		CertificateChain: inline("-----BEGIN CERTIFICATE-----\nabc\n"),
		PrivateKey:       inlineBytes(key),
	}
	upstream := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificates: []*tlsv3.TlsCertificate{certificate},
	}}
	secret := func(s *tlsv3.Secret) *anypb.Any {
		s.Name = "a"
		return pack(t, s)
	}
	for _, test := range []struct {
		rule    string
		content *anypb.Any
		want    string // of what is below resource:
	}{
		{"fields keep their order, and strings that look like something else are quoted",
			pack(t, &clusterv3.Cluster{Name: "yes", AltStatName: "12", ConnectTimeout: durationpb.New(1e9)}), `
  '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: "yes"
  alt_stat_name: "12"
  connect_timeout: 1s
`},
		{"a key within an Any is redacted, and text of many lines is a block",
			pack(t, socket(pack(t, upstream))), `
  '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: a
  transport_socket:
    name: tls
    typed_config:
      '@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
      common_tls_context:
        tls_certificates:
          - certificate_chain:
              inline_string: |
                -----BEGIN CERTIFICATE-----
                abc
            private_key:
              inline_string: '[redacted]'
`},
		{"where a key is, is no secret",
			secret(&tlsv3.Secret{Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
				PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "/etc/key.pem"}},
				Password:   inline("hush"),
			}}}), `
  '@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: a
  tls_certificate:
    private_key:
      filename: /etc/key.pem
    password:
      inline_string: '[redacted]'
`},
		{"secrets in lists are redacted",
			secret(&tlsv3.Secret{Type: &tlsv3.Secret_SessionTicketKeys{SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{
				Keys: []*corev3.DataSource{inlineBytes("hush"), inlineBytes("hush")},
			}}}), `
  '@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: a
  session_ticket_keys:
    keys:
      - inline_string: '[redacted]'
      - inline_string: '[redacted]'
`},
		{"secrets in maps are redacted",
			secret(&tlsv3.Secret{Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{
				Secrets: map[string]*corev3.DataSource{"token": inline("hush")},
			}}}), `
  '@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: a
  generic_secret:
    secrets:
      token:
        inline_string: '[redacted]'
`},
		{"of a type that is not known the size is printed, as it may have secrets anywhere",
			&anypb.Any{TypeUrl: prefix + "example.Unheard", Value: []byte("\xff\x00")}, `
  '@type': type.googleapis.com/example.Unheard
  hidden: 2 bytes that may have secrets in them
`},
		{"so is one within a type that is known",
			pack(t, socket(&anypb.Any{TypeUrl: prefix + "example.Unheard", Value: []byte("\xff\x00")})), `
  '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: a
  transport_socket:
    name: tls
    typed_config:
      '@type': type.googleapis.com/example.Unheard
      hidden: 2 bytes that may have secrets in them
`},
		{"a message that does not decode may have secrets anywhere",
			pack(t, socket(&anypb.Any{TypeUrl: prefix + "envoy.extensions.transport_sockets.tls.v3.Secret", Value: []byte("\xff")})), `
  '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: a
  transport_socket:
    name: tls
    typed_config:
      '@type': undecodable/type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
      hidden: 1 bytes that may have secrets in them
`},
		{"what has no form in JSON is as if it did not decode",
			pack(t, &clusterv3.Cluster{ConnectTimeout: &durationpb.Duration{Nanos: 2e9}}), `
  '@type': undecodable/type.googleapis.com/envoy.config.cluster.v3.Cluster
  hidden: 8 bytes that may have secrets in them
`},
		{"an Any without a type is as if it did not decode",
			pack(t, socket(&anypb.Any{Value: []byte("x")})), `
  '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: a
  transport_socket:
    name: tls
    typed_config:
      '@type': undecodable/
      hidden: 1 bytes that may have secrets in them
`},
	} {
		t.Run(test.rule, func(t *testing.T) {
			r := resource(test.content)
			before := proto.CloneOf(r)
			text, err := Options{}.YAML(r)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := string(text), "name: a\nversion: \"7\"\nresource:"+test.want; got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
			if strings.Contains(string(text), "hush") {
				t.Error("there is a secret in it")
			}
			if !proto.Equal(r, before) {
				t.Error("the resource was changed")
			}
		})
	}
}

func TestSecretsAreShownWhenAskedFor(t *testing.T) {
	content := pack(t, &tlsv3.Secret{Type: &tlsv3.Secret_TlsCertificate{
		TlsCertificate: &tlsv3.TlsCertificate{PrivateKey: inline("hush")},
	}})
	for _, content := range []*anypb.Any{content, {TypeUrl: content.TypeUrl, Value: append(content.Value, 0xff)}, {TypeUrl: "a/b", Value: append(content.Value, 0xff)}} {
		text, err := Options{ShowSecrets: true}.JSON(resource(content))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "hush") && !strings.Contains(string(text), "aHVzaP8") {
			t.Errorf("there is no secret in it: %s", text)
		}
	}
}

func TestAnyWithinAnyIsFollowedOnlySoFar(t *testing.T) {
	const most = 64
	content := &anypb.Any{TypeUrl: prefix + "example.Unheard"}
	for range 10 * most {
		content = pack(t, content)
	}
	text, err := Options{}.JSON(resource(content))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(text), "google.protobuf.Any"); got > most+1 {
		t.Errorf("%d Any were followed, want %d at most", got, most)
	}
}

func FuzzEveryResourceIsPrinted(f *testing.F) {
	f.Add(prefix+"envoy.config.cluster.v3.Cluster", pack(f, socket(pack(f, &tlsv3.UpstreamTlsContext{Sni: "x"}))).Value)
	f.Add(prefix+"envoy.config.listener.v3.Listener", pack(f, &listenerv3.Listener{Name: "\u0085\ufeff", StatPrefix: "a\nb \n"}).Value)
	f.Add(prefix+"google.protobuf.Value", []byte{0x11, 0, 0, 0, 0, 0, 0, 0xf8, 0x7f}) // NaN
	f.Add(prefix+"google.protobuf.Any", []byte{0x12, 1, 'x'})
	f.Add("", []byte("x"))
	f.Fuzz(func(t *testing.T, typeURL string, value []byte) {
		r := resource(&anypb.Any{TypeUrl: strings.ToValidUTF8(typeURL, "?"), Value: value})
		asJSON, err := Options{}.IndentedJSON(r)
		if err != nil {
			t.Fatal(err)
		}
		var fromJSON, fromYAML any
		if err := json.Unmarshal(asJSON, &fromJSON); err != nil {
			t.Fatal(err)
		}
		asYAML, err := Options{}.YAML(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(asYAML, &fromYAML); err != nil {
			t.Fatalf("%v in:\n%s", err, asYAML)
		}
		if !reflect.DeepEqual(fromJSON, fromYAML) {
			t.Errorf("JSON:\n%s\nYAML:\n%s", asJSON, asYAML)
		}
	})
}
