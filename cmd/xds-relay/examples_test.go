package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/descriptors/descriptorstest"
)

var warnings = regexp.MustCompile(`(?m)^warning: .*\n`)

// With the files that they name in place, the examples are what `check` has nothing against.
func TestCheckAcceptsTheExamples(t *testing.T) {
	paths, err := filepath.Glob("../../configs/examples/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	var examples []string
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		examples = append(examples, string(text))
	}
	t.Chdir(t.TempDir())
	writeCertificate(t)
	if err := os.WriteFile("token", []byte("eyJhbGciOi.eyJpc3Mi.c2ln\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("acme.binpb", descriptorstest.Encode(t, descriptorstest.Widget), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { descriptors.Use(nil) })
	const keys = `{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`
	if err := os.WriteFile("jwks.json", []byte(keys), 0o600); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, status := runCommand(t, "store", "keygen", "store.key"); status != 0 {
		t.Fatal(stdout, stderr)
	}
	file := regexp.MustCompile(`/etc/\S+\.pem`)
	for i, example := range examples {
		example = file.ReplaceAllStringFunc(example, func(name string) string {
			if strings.HasSuffix(name, "-key.pem") {
				return "key.pem"
			}
			return "cert.pem"
		})
		example = regexp.MustCompile(`/var/run/secrets/\S+\.crt`).ReplaceAllString(example, "cert.pem")
		example = regexp.MustCompile(`/etc/\S+/jwks\.json`).ReplaceAllString(example, "jwks.json")
		example = regexp.MustCompile(`/var/run/secrets/\S+`).ReplaceAllString(example, "token")
		example = strings.NewReplacer("/etc/xds-relay/store.key", "store.key", "/etc/xds-relay/acme.binpb", "acme.binpb", "/var/lib/xds-relay/", "").Replace(example)
		example = regexp.MustCompile(`/etc/xds/\w+`).ReplaceAllString(example, "resources")
		if err := os.MkdirAll("resources", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("relay.yaml", []byte(example), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, status := runCommand(t, "check", "--config", "relay.yaml")
		// An example may serve the whole network without TLS, which is warned of.
		if stderr = warnings.ReplaceAllString(stderr, ""); status != 0 || stderr != "" || stdout == "" {
			t.Errorf("%s: status %d, stderr\n%s", filepath.Base(paths[i]), status, stderr)
		}
	}
}
