package configs

// This file is the keys of `listeners[].jwt`: which tokens authenticate clients.

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// JWT says which bearer tokens of clients are valid.
type JWT struct {
	// The issuer of the tokens, exactly as in their `iss`.
	Issuer string `yaml:"issuer" required:"true"`
	// The audiences of the tokens: their `aud` needs one of these.
	Audiences []string `yaml:"audiences" required:"true"`
	// The file of the issuer's public keys, as a JSON Web Key Set. The relay reads it again when
	// it changes.
	JWKSFile string `yaml:"jwks_file" absent:"none, with jwks_url"`
	// Where the relay fetches the issuer's public keys: an https URL, or http with a loopback host. It
	// fetches them every 5 minutes, and when a token names a key that it does not know.
	JWKSURL string `yaml:"jwks_url" absent:"none, with jwks_file"`
	// The roots to trust at `jwks_url`.
	JWKSCAFile string `yaml:"jwks_ca_file" absent:"the system's roots"`
	// A file with a bearer token that the relay sends to `jwks_url`. The API server of Kubernetes
	// requires one.
	JWKSTokenFile string `yaml:"jwks_token_file" absent:"none"`
	// Whether every client needs a token. A stream without one then ends with UNAUTHENTICATED; over
	// REST the request gets status 401.
	Required bool `yaml:"required" default:"false"`
	// How long a stream goes on after its token has expired. A gRPC client sends a token only when it
	// opens a stream, so with 0s it has to open a new stream for each token.
	Grace time.Duration `yaml:"grace" default:"1h" allow:"zero"`
}

func (k *checker) jwt(path string, j *JWT) {
	k.present(path+".issuer", j.Issuer, "want the issuer of the tokens, such as https://kubernetes.default.svc")
	if len(j.Audiences) == 0 {
		k.fail(path+".audiences", "missing (want the audiences of the tokens, such as [xds-relay]: without one, tokens for any other service would do)")
	}
	switch hasFile, hasURL := k.has(path+".jwks_file"), k.has(path+".jwks_url"); {
	case hasFile && hasURL:
		k.fail(path, "has both jwks_file and jwks_url (want one of them)")
	case !hasFile && !hasURL:
		k.fail(path, "has neither jwks_file nor jwks_url (want one of them)")
	case hasFile:
		k.present(path+".jwks_file", j.JWKSFile, "want the file of the issuer's keys")
		for _, key := range []string{"jwks_ca_file", "jwks_token_file"} {
			if k.has(path + "." + key) {
				k.fail(path+"."+key, "is for jwks_url (want no such key)")
			}
		}
	default:
		if err := checkKeysURL(j.JWKSURL); err != nil && !k.isUnusable(path+".jwks_url") {
			k.fail(path+".jwks_url", "%w", err)
		}
	}
}

// checkKeysURL refuses URLs whose answers somebody else could forge.
func checkKeysURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return errors.New("is not a URL (want https://host/path)") // which may have a password in it
	case u.User != nil:
		return errors.New("has a user (want https://host/path, and jwks_token_file)")
	case u.Fragment != "":
		return fmt.Errorf("%q has a fragment (want https://host/path)", text)
	case u.Scheme == "http" && isLoopbackHost(u.Hostname()), u.Scheme == "https":
		return nil
	case u.Scheme == "http":
		return fmt.Errorf("%q is not encrypted, so others on the path could forge keys (want https, or a loopback host)", text)
	}
	return fmt.Errorf("%q is not of https (want https://host/path)", text)
}

func isLoopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
