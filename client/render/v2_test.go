package render

import (
	"strings"
	"testing"

	authv2 "github.com/envoyproxy/go-control-plane/envoy/api/v2/auth"
	corev2 "github.com/envoyproxy/go-control-plane/envoy/api/v2/core"
	"google.golang.org/protobuf/proto"
)

// The secrets of the API's version 2 are as secret as those of version 3.
func TestSecretsOfV2AreRedacted(t *testing.T) {
	hush := &corev2.DataSource{Specifier: &corev2.DataSource_InlineString{InlineString: "hush"}}
	for name, secret := range map[string]proto.Message{
		"certificate": &authv2.Secret{Name: "a", Type: &authv2.Secret_TlsCertificate{TlsCertificate: &authv2.TlsCertificate{PrivateKey: hush, Password: hush}}},
		"tickets":     &authv2.Secret{Name: "a", Type: &authv2.Secret_SessionTicketKeys{SessionTicketKeys: &authv2.TlsSessionTicketKeys{Keys: []*corev2.DataSource{hush}}}},
		"generic":     &authv2.Secret{Name: "a", Type: &authv2.Secret_GenericSecret{GenericSecret: &authv2.GenericSecret{Secret: hush}}},
	} {
		text, err := Options{}.JSON(resource(pack(t, secret)))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "hush") || !strings.Contains(string(text), "[redacted]") {
			t.Errorf("%s: got %s", name, text)
		}
	}
}
