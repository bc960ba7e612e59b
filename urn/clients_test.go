package urn

import (
	"errors"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestEnvoyAndGRPCSpellingsOfOneNameHaveOneKey(t *testing.T) {
	// As printed by grpc-go's xdsresource.Name.String, and by Envoy's
	// XdsResourceIdentifier::encodeUrn with and without the runtime feature
	// xdstp_path_avoid_colon_encoding.
	tests := []struct{ canonical, grpc, envoy, oldEnvoy string }{
		{
			canonical: "xdstp://cloud.example.com/envoy.config.listener.v3.Listener/%5B::%5D:8080/inbound",
			grpc:      "xdstp://cloud.example.com/envoy.config.listener.v3.Listener/%5B::%5D:8080/inbound",
			envoy:     "xdstp://cloud.example.com/envoy.config.listener.v3.Listener/%5B::%5D:8080/inbound",
			oldEnvoy:  "xdstp://cloud.example.com/envoy.config.listener.v3.Listener/%5B%3A%3A%5D%3A8080/inbound",
		},
		{
			canonical: "xdstp://cloud.example.com:443/t/~x/b:c?a=2&a-b=1",
			grpc:      "xdstp://cloud.example.com:443/t/~x/b:c?a=2&a-b=1",
			envoy:     "xdstp://cloud.example.com:443/t/%7Ex/b:c?a-b=1&a=2",
			oldEnvoy:  "xdstp://cloud.example.com:443/t/%7Ex/b%3Ac?a-b=1&a=2",
		},
		{
			canonical: "xdstp:///t/a%20b!'()*,;=&+$@%C3%A9%22%7C?k=x%20y/?:@%C3%A9",
			grpc:      "xdstp:///t/a%20b%21%27%28%29%2A,;=&+$@%C3%A9%22%7C?k=x y/?:@\u00e9",
			envoy:     "xdstp:///t/a b!'()*,;=&+$@%C3%A9\"|?k=x y/?:@%C3%A9",
			oldEnvoy:  "xdstp:///t/a b!'()*,;=&+$@%C3%A9\"|?k=x y/?:@%C3%A9",
		},
		{
			canonical: "xdstp://a/t/?x=1",
			grpc:      "xdstp://a/t?x=1",
			envoy:     "xdstp://a/t?x=1",
			oldEnvoy:  "xdstp://a/t?x=1",
		},
		{
			canonical: "xdstp://[::1]:443/t/100%25/%23%3Fx",
			grpc:      "xdstp://[::1]:443/t/100%25/%23%3Fx",
			envoy:     "xdstp://[::1]:443/t/100%25/%23%3Fx",
			oldEnvoy:  "xdstp://[::1]:443/t/100%25/%23%3Fx",
		},
	}
	for _, tt := range tests {
		for client, name := range map[string]string{"grpc-go": tt.grpc, "Envoy": tt.envoy, "old Envoy": tt.oldEnvoy} {
			if key, err := KeyOf(name); err != nil || key.Name != tt.canonical {
				t.Errorf("%s: KeyOf(%q).Name = %q, %v, want %q", client, name, key.Name, err, tt.canonical)
			}
		}
		u, err := ParseURN(tt.canonical)
		if err != nil {
			t.Error(err)
			continue
		}
		if err := readByClients(u); err != nil {
			t.Errorf("%q: %v", u, err)
		}
	}
}

func TestEnvoysOwnExamplesMeanWhatEnvoyReads(t *testing.T) {
	// Envoy's xds_resource_test.cc.
	const name = "xdstp://f123%25%2F%3F%23o/envoy.config.listener.v3.Listener/b%25%3A%3F%23%5B%5Dar//" +
		"baz?%25%23%5B%5D%26%3D=bar&%25%23%5B%5D%26%3Dab=cde%25%23%5B%5D%26%3Df&foo=%25%23%5B%5D%26%3D"
	u, err := ParseURN(name)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := u.Authority(), "f123%/?#o"; got != want {
		t.Errorf("authority %q, want %q", got, want)
	}
	if got, want := u.ID(), []string{"b%:?#[]ar", "", "baz"}; !slices.Equal(got, want) {
		t.Errorf("id %q, want %q", got, want)
	}
	wantParams := map[string]string{"%#[]&=": "bar", "%#[]&=ab": "cde%#[]&=f", "foo": "%#[]&="}
	if got := u.Params(); !maps.Equal(got, wantParams) {
		t.Errorf("parameters %q, want %q", got, wantParams)
	}
	if err := envoyReads(u); err != nil {
		t.Errorf("%q: %v", u, err)
	}

	url, err := ParseURL(name + "#entry=some_entry,alt=xdstp://fo%2525%252F%253F%2523o/bar%23alt=xdstp://bar/baz%2Centry=huh")
	if err != nil {
		t.Fatal(err)
	}
	alt, _ := url.Alt()
	if got, want := alt.Key().Authority, "fo%/?#o"; got != want {
		t.Errorf("alt's authority %q, want %q", got, want)
	}
	if got, _ := alt.Entry(); got != "huh" {
		t.Errorf("alt's entry %q, want huh", got)
	}
	if inner, _ := alt.Alt(); inner.String() != "xdstp://bar/baz/" {
		t.Errorf("alt's alt %q, want xdstp://bar/baz/", inner)
	}
}

// readByClients returns how Envoy or grpc-go would misread the canonical
// spelling.
func readByClients(u URN) error {
	if err := envoyReads(u); err != nil {
		return err
	}
	return grpcReads(u)
}

// envoyReads reads the canonical spelling as Envoy does: it decodes everything
// but the type, and the id as a whole.
func envoyReads(u URN) error {
	host, path, _ := strings.Cut(strings.TrimPrefix(u.String(), "xdstp://"), "/")
	if got := decoded(host); got != u.Authority() {
		return errors.New("Envoy reads authority " + got)
	}
	path, query, _ := strings.Cut(path, "?")
	_, id, _ := strings.Cut(path, "/")
	if got := decoded(id); got != strings.Join(u.ID(), "/") {
		return errors.New("Envoy reads id " + got)
	}
	params := map[string]string{}
	for pair := range strings.SplitSeq(query, "&") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			params[decoded(key)] = decoded(value)
		}
	}
	if !maps.Equal(params, u.Params()) {
		return errors.New("Envoy reads parameters " + query)
	}
	return nil
}

// plainHost matches the authorities for which net/url has no special rules: no port, no
// brackets, and no escapes, which it allows only for non-ASCII.
var plainHost = regexp.MustCompile(`^[A-Za-z0-9._~-]*$`)

// grpcReads reads the canonical spelling as grpc-go does: as net/url.
func grpcReads(u URN) error {
	if !plainHost.MatchString(u.Authority()) {
		return nil
	}
	parsed, err := url.Parse(u.String())
	if err != nil {
		return err
	}
	if parsed.Host != u.Authority() {
		return errors.New("grpc-go reads authority " + parsed.Host)
	}
	if want := "/" + u.Type() + "/" + strings.Join(u.ID(), "/"); parsed.Path != want {
		return errors.New("grpc-go reads path " + parsed.Path)
	}
	params := map[string]string{}
	for key, values := range parsed.Query() {
		params[key] = values[0]
	}
	if !maps.Equal(params, u.Params()) {
		return errors.New("grpc-go reads parameters " + parsed.RawQuery)
	}
	return nil
}
