package configs

// This file checks the files that a configuration names.

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/xds-relay/xds-relay/identity/tokens"
	"github.com/xds-relay/xds-relay/internal/certs/credfile"
	"github.com/xds-relay/xds-relay/internal/descriptors"
)

// CheckFiles reads the files that c names. Load and Parse do not, so that one can check a configuration
// on another machine. The error is an Errors with every file that the relay cannot use. CheckFiles does
// not check directories of resources: a directory may appear later, and the relay logs that it is
// missing until then.
func (c *Config) CheckFiles() error {
	return inOrder(c.checkFiles().errs)
}

// FileWarnings reads the same files, and returns a warning for each that has an expired certificate. The
// relay starts anyway, because the files may be replaced.
func (c *Config) FileWarnings() Errors {
	expired := c.checkFiles().expired
	_ = inOrder(expired)
	return expired
}

func (c *Config) checkFiles() *fileChecker {
	f := &fileChecker{source: c.source}
	for i, l := range c.Listeners {
		if j := l.JWT; j != nil {
			f.jwt(fmt.Sprintf("listeners[%d].jwt", i), j)
		}
		if l.TLS != nil {
			f.tls(fmt.Sprintf("listeners[%d].tls", i), l.TLS.CertFile, l.TLS.KeyFile, "client_ca_file", l.TLS.ClientCAFile)
		}
	}
	if t := c.Admin.TLS; t != nil {
		f.tls("admin.tls", t.CertFile, t.KeyFile, "client_ca_file", t.ClientCAFile)
	}
	for i, a := range c.Authorities {
		for j, s := range a.Servers {
			path := fmt.Sprintf("authorities[%d].servers[%d]", i, j)
			if s.TLS != nil {
				f.tls(path+".tls", s.TLS.CertFile, s.TLS.KeyFile, "ca_file", s.TLS.CAFile)
			}
			if data, ok := f.read(path+".token_file", s.TokenFile); ok {
				_, err := credfile.Token(s.TokenFile, data)
				f.add(path+".token_file", err)
			}
		}
	}
	if c.Fleet != nil && c.Fleet.TLS != nil {
		t := c.Fleet.TLS
		f.tls("fleet.tls", t.CertFile, t.KeyFile, "ca_file", t.CAFile)
	}
	if c.Fleet != nil && c.Fleet.Members.Etcd != nil {
		t := c.Fleet.Members.Etcd.TLS
		f.tls("fleet.members.etcd.tls", t.CertFile, t.KeyFile, "ca_file", t.CAFile)
	}
	_, err := descriptors.Load(c.Descriptors...)
	f.add("descriptors", err)
	if c.Store.Path != "" {
		f.read("store.key_file", c.Store.KeyFile)
		f.folder("store.path", filepath.Dir(c.Store.Path))
	}
	return f
}

// fileChecker collects the errors in files, and the expired certificates.
type fileChecker struct {
	source
	errs, expired Errors
}

func (f *fileChecker) add(path string, err error) {
	if err != nil {
		f.errs = append(f.errs, f.errorf(path, "%w", err))
	}
}

// read reads the file of the key at path. It returns false if there is no such key, or if it cannot read
// the file.
func (f *fileChecker) read(path, file string) (data []byte, ok bool) {
	if file == "" {
		return nil, false
	}
	data, err := os.ReadFile(file)
	f.add(path, err)
	return data, err == nil
}

// jwt reads the files of the JWT at path.
func (f *fileChecker) jwt(path string, j *JWT) {
	if set, ok := f.read(path+".jwks_file", j.JWKSFile); ok {
		if _, err := tokens.ParseKeys(set); err != nil {
			f.add(path+".jwks_file", fmt.Errorf("%s %w", j.JWKSFile, err))
		}
	}
	if ca, ok := f.read(path+".jwks_ca_file", j.JWKSCAFile); ok {
		_, err := credfile.Roots(j.JWKSCAFile, ca)
		f.add(path+".jwks_ca_file", err)
	}
	if token, ok := f.read(path+".jwks_token_file", j.JWKSTokenFile); ok {
		_, err := credfile.Token(j.JWKSTokenFile, token)
		f.add(path+".jwks_token_file", err)
	}
}

// folder checks that the folder of the key at path exists.
func (f *fileChecker) folder(path, folder string) {
	info, err := os.Stat(folder)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a folder", folder)
	}
	f.add(path, err)
}

// tls reads the files of the TLS at path. caKey is the key of caFile.
func (f *fileChecker) tls(path, certFile, keyFile, caKey, caFile string) {
	cert, hasCert := f.read(path+".cert_file", certFile)
	key, hasKey := f.read(path+".key_file", keyFile)
	if hasCert && hasKey {
		pair, err := credfile.Pair(certFile, keyFile, cert, key)
		f.add(path+".cert_file", err)
		if err == nil {
			f.expires(path+".cert_file", certFile, pair.Leaf.NotAfter)
		}
	}
	if ca, ok := f.read(path+"."+caKey, caFile); ok {
		roots, err := credfile.Roots(caFile, ca)
		f.add(path+"."+caKey, err)
		if err == nil {
			f.expires(path+"."+caKey, caFile, roots.Expiry())
		}
	}
}

func (f *fileChecker) expires(path, file string, at time.Time) {
	if time.Now().After(at) {
		f.expired = append(f.expired, f.errorf(path, "%s has a certificate that expired at %s", file, at.UTC().Format(time.RFC3339)))
	}
}
