package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"sigs.k8s.io/yaml"

	"github.com/xds-relay/xds-relay/identity"
)

// readIdentity reads an identity, in JSON or YAML. Without a file it returns that of an anonymous
// client.
func readIdentity(file string) (*identity.Identity, error) {
	if file == "" {
		return identity.Anonymous(nil), nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--identity: %w", err)
	}
	id, err := parseIdentity(text)
	if err != nil {
		return nil, fmt.Errorf("--identity %s: %w", file, err)
	}
	return id, nil
}

func parseIdentity(text []byte) (*identity.Identity, error) {
	text, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	id := &identity.Identity{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(id); err != nil {
		return nil, fmt.Errorf("not an identity: %w", err)
	}
	return id, complete(id)
}

// complete sets the fields that follow from others, as the relay does for a client.
func complete(id *identity.Identity) error {
	if id.SPIFFEID != "" {
		of, err := spiffeid.FromString(id.SPIFFEID)
		if err != nil {
			return fmt.Errorf("spiffe_id: %q is not a SPIFFE ID (want one such as spiffe://example.org/ns/pay/sa/gw)", id.SPIFFEID)
		}
		id.TrustDomain, id.SPIFFEPath = of.TrustDomain().Name(), of.Path()
	}
	switch id.Source {
	case identity.None, identity.MTLS, identity.JWT, identity.Unix:
		return nil
	case "":
	default:
		return fmt.Errorf("source: %q is not a source (want mtls, jwt, unix or none)", id.Source)
	}
	switch {
	case id.Claims != nil:
		id.Source = identity.JWT
	case id.UID != nil:
		id.Source = identity.Unix
	case id.SPIFFEID != "" || len(id.DNSNames) > 0 || id.Subject != "":
		id.Source = identity.MTLS
	default:
		id.Source = identity.None
	}
	return nil
}
