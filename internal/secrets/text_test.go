package secrets_test

import (
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/secrets"
)

func TestWordsLoseKeysAndDumps(t *testing.T) {
	for text, want := range map[string]string{
		"unknown cluster 'cart'": "unknown cluster 'cart'",
		"Error adding/updating listener(s) in: Proto constraint validation failed (Listener.Address: [\"value is required\"]): private_key { inline_string: \"" + marker + "\" }\nand more": "Error adding/updating listener(s) in: Proto constraint validation failed (Listener.Address: [\"value is required\"]): [redacted]",
		"Proto constraint validation failed (Listener.Address: value is required)":                                                                                                          "Proto constraint validation failed (Listener.Address: value is required)",
		"a -----BEGIN RSA PRIVATE KEY-----\n" + marker + "\n-----END RSA PRIVATE KEY----- b":                                                                                                "a [redacted] b",
		"a -----BEGIN PRIVATE KEY-----\\n" + marker:                                                                                                                                         "a [redacted]",
		"a -----BEGIN CERTIFICATE-----\nMII":                                                                                                                                                "a -----BEGIN CERTIFICATE-----\nMII",
	} {
		if got := secrets.Words(text); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestFaultsOfTextQuoteNoValues(t *testing.T) {
	const hidden = "unknown field, whose name is not shown because no name in Envoy's API is similar"
	inJSON := func(text string, m proto.Message) error { return protojson.Unmarshal([]byte(text), m) }
	inText := func(text string, m proto.Message) error { return prototext.Unmarshal([]byte(text), m) }
	for _, tt := range []struct {
		parse func(string, proto.Message) error
		m     proto.Message
		text  string
		want  string
	}{
		{inJSON, &clusterv3.Cluster{}, `{"connectTimout": "1s"}`, `unknown field "connectTimout"`},
		{inJSON, &clusterv3.Cluster{}, `{"naem": "a"}`, `unknown field "naem"`},
		{inJSON, &clusterv3.Cluster{}, `{"private_key": "a"}`, `unknown field "private_key"`},
		{inJSON, &clusterv3.Cluster{}, `{"` + marker + `": "a"}`, hidden},
		{inJSON, &clusterv3.Cluster{}, `{"name": "a", "name": "` + marker + `"}`, `duplicate field "name"`},
		{inJSON, &clusterv3.Cluster{}, `{"type": "EDDS"}`, `invalid value for enum field type: "EDDS"`},
		{inJSON, &clusterv3.Cluster{}, `{"type": "` + marker + `"}`, `invalid value for enum field type`},
		{inJSON, &clusterv3.Cluster{}, `{"name": ` + marker + `}`, ""},
		{inJSON, &clusterv3.Cluster{}, `{"connectTimeout": "` + marker + `"}`, ""},
		{inJSON, &tlsv3.Secret{}, `{"tlsCertificate": {"privateKey": {"inlineBytes": "` + marker + `!"}}}`, "invalid value for bytes field inlineBytes"},
		{inJSON, &tlsv3.Secret{}, `{"tlsCertificate": {"privateKey": {"inlineString": "a", "inlineBytes": "` + marker + `"}}}`, "oneof envoy.config.core.v3.DataSource.specifier is already set"},
		{inJSON, &tlsv3.Secret{}, `{"genericSecret": {"secrets": {"` + marker + `": {}, "` + marker + `": {}}}}`, "duplicate map key"},
		{inJSON, &tlsv3.Secret{}, `{"tlsCertificate": "` + marker + `"}`, ""},
		{inText, &clusterv3.Cluster{}, `connect_timout { }`, "unknown field: connect_timout"},
		{inText, &clusterv3.Cluster{}, marker + `: 1`, hidden},
		{inText, &clusterv3.Cluster{}, `name: ` + marker, "invalid value for string type"},
		{inText, &clusterv3.Cluster{}, `name: "a" name: "` + marker + `"`, `non-repeated field "name" is repeated`},
	} {
		err := tt.parse(tt.text, tt.m)
		if err == nil {
			t.Fatalf("%s is read", tt.text)
		}
		if got := secrets.Fault(err); got != tt.want || strings.Contains(got, marker) {
			t.Errorf("%s: got %q for %v, want %q", tt.text, got, err, tt.want)
		}
	}
}
