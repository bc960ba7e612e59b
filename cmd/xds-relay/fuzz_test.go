package main

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// FuzzIdentity reads any text as an identity. It is one that a client can have, and prints so that it reads the same again.
func FuzzIdentity(f *testing.F) {
	for _, text := range []string{
		"{spiffe_id: spiffe://example.org/ns/pay/sa/gw, dns_names: [a.example.org]}",
		`{"source": "jwt", "subject": "gw", "claims": {"iss": "https://issuer", "groups": ["a", 1, null]}}`,
		"uid: 0", "", "source: other", "spiffe_id: spiffe://example.org:80/a?b#c", "spiffe_id: spiffe://user@example.org/%61/../b",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		id, err := parseIdentity(text)
		if err != nil {
			return
		}
		if id.SPIFFEID != "" {
			if of, err := spiffeid.FromString(id.SPIFFEID); err != nil || of.TrustDomain().Name() != id.TrustDomain || of.Path() != id.SPIFFEPath {
				t.Fatalf("%s is %+v, whose SPIFFE ID is no client's (%v)", text, id, err)
			}
		}
		printed, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseIdentity(printed)
		if err != nil || id.Source == "" {
			t.Fatalf("%s prints as %s: %v", text, printed, err)
		}
		if second, err := json.Marshal(again); err != nil || string(second) != string(printed) || again.Key() != id.Key() || !reflect.DeepEqual(again.UID, id.UID) {
			t.Fatalf("%s prints as %s, and then as %s (%v)", text, printed, second, err)
		}
	})
}

// FuzzNode reads any text as a Node, which prints so that it reads the same again.
func FuzzNode(f *testing.F) {
	for _, text := range []string{
		"id: edge\ncluster: c\nmetadata: {a: [1, null, {b: c}], n: 1.5}\nlocality: {zone: z}\nuser_agent_build_version: {version: {major_number: 1}}\n",
		`{"id": "edge", "clientFeatures": ["a"], "extensions": [{"name": "x"}]}`, "id: a\nunknown: b\n", "--- {}\n--- {}\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		node, err := parseNode(text)
		if err != nil {
			return
		}
		printed, err := protojson.Marshal(node)
		if err != nil {
			return // a number that JSON does not have
		}
		if again, err := parseNode(printed); err != nil || !proto.Equal(again, node) {
			t.Fatalf("%s prints as %s, which reads as %v (%v)", text, printed, again, err)
		}
	})
}
