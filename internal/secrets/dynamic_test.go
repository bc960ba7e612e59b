package secrets_test

import (
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/descriptors/descriptorstest"
	"github.com/xds-relay/xds-relay/internal/secrets"
)

// widget returns a resource of a type that only has descriptors, from JSON.
func widget(t *testing.T, text string) *anypb.Any {
	t.Helper()
	var content anypb.Any
	text = strings.Replace(text, "{", `{"@type":"`+descriptorstest.WidgetURL+`",`, 1)
	if err := (protojson.UnmarshalOptions{Resolver: descriptors.Types{}}).Unmarshal([]byte(text), &content); err != nil {
		t.Fatal(err)
	}
	return &content
}

// Secrets in messages that only have descriptors are hidden, at any depth, also inside the messages that the masker
// reads by their Go types.
func TestSecretsOfDescriptorsAreHidden(t *testing.T) {
	descriptorstest.Use(t, descriptorstest.Widget)
	const secret = "do-not-show"
	for name, text := range map[string]string{
		"a field":              `{"api_token": "do-not-show"}`,
		"a message in a list":  `{"parts": [{}, {"api_token": "do-not-show"}]}`,
		"an Any":               `{"inner": {"@type": "type.googleapis.com/acme.v1.Widget", "api_token": "do-not-show"}}`,
		"an Any in a message":  `{"parts": [{"inner": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "generic_secret": {"secret": {"inline_string": "do-not-show"}}}}]}`,
		"a Struct":             `{"data": {"inner": {"api_token": "do-not-show"}}}`,
		"a TypedStruct":        `{"inner": {"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": "type.googleapis.com/acme.v1.Widget", "value": {"apiToken": "do-not-show"}}}`,
		"a key of another one": `{"parts": [{"data": {"private_key": "do-not-show"}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			content := widget(t, text)
			if name != "a Struct" && name != "a key of another one" && !secrets.Holds(content.TypeUrl, content.Value) {
				t.Error("no secret is found")
			}
			marshal := protojson.MarshalOptions{Resolver: secrets.Types{}, UseProtoNames: true}
			shown, err := marshal.Marshal(secrets.Masked(&discoveryv3.Resource{Resource: content}))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(shown), secret) {
				t.Errorf("the secret is shown: %s", shown)
			}
			if !strings.Contains(string(shown), "[redacted]") {
				t.Errorf("nothing says that something is hidden: %s", shown)
			}
			shown, err = marshal.Marshal(secrets.Unmasked(&discoveryv3.Resource{Resource: content}))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(shown), secret) {
				t.Errorf("not even --show-secrets shows it: %s", shown)
			}
		})
	}
	shown, err := protojson.MarshalOptions{Resolver: secrets.Types{}}.Marshal(secrets.Masked(widget(t, `{"name": "w", "parts": [{"name": "p", "data": {"x": 1}}]}`)))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`"w"`, `"p"`, `"x"`} {
		if !strings.Contains(string(shown), text) {
			t.Errorf("%s is not shown: %s", text, shown)
		}
	}
}

// An operator's descriptor set without the marks of Envoy's messages shows none of their secrets.
func TestMarksOfEnvoyHoldInEverySet(t *testing.T) {
	descriptorstest.Use(t, `
		file { name: "stripped/tls.proto" package: "envoy.extensions.transport_sockets.tls.v3"
			message_type { name: "TlsCertificate" field { name: "password" json_name: "password" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL } } }
		file { name: "acme/v1/widget.proto" package: "acme.v1" dependency: "stripped/tls.proto"
			message_type { name: "Widget" field { name: "tls" json_name: "tls" number: 1 type: TYPE_MESSAGE type_name: ".envoy.extensions.transport_sockets.tls.v3.TlsCertificate" label: LABEL_OPTIONAL } } }`)
	content := widget(t, `{"tls": {"password": "do-not-show"}}`)
	if !secrets.Holds(content.TypeUrl, content.Value) {
		t.Error("no secret is found")
	}
	shown, err := protojson.MarshalOptions{Resolver: secrets.Types{}}.Marshal(secrets.Masked(content))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(shown), "do-not-show") {
		t.Errorf("the secret is shown: %s", shown)
	}
}
