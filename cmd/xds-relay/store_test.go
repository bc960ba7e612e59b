package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/store"
)

const storedKey = "-----BEGIN PRIVATE KEY----- MARKER"

// writeStore writes a store with a cluster and a secret.
func writeStore(t *testing.T, path, keyFile string) {
	t.Helper()
	o := store.Options{Log: slog.New(slog.DiscardHandler)}
	if keyFile != "" {
		var err error
		if o.Key, err = store.ReadKey(keyFile); err != nil {
			t.Fatal(err)
		}
	}
	s, err := store.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := proto.Marshal(&tlsv3.Secret{Name: "pair", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: storedKey}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	scope := cache.Scope{Authority: "cp", OldStyle: true}
	s.Note("cp:1", func(n *store.Notes) {
		clusters := cache.Key{Scope: scope, TypeURL: xdstype.ClusterV3, Name: cache.Wildcard}
		n.Member(clusters, "backend", cache.NewResource(cache.Spec{Name: "backend", Version: "v7", TypeURL: xdstype.ClusterV3, Value: []byte("\x0a\x07backend")}))
		n.Whole(clusters, false)
		n.Entry(cache.Key{Scope: scope, TypeURL: secretType, Name: "pair"}, cache.NewResource(cache.Spec{Name: "pair", Version: "v8", TypeURL: secretType, Value: secret}))
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// storeCommand runs `xds-relay store`.
func storeCommand(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	status = run(t.Context(), append([]string{"store"}, args...), &out, &err)
	return status, out.String(), err.String()
}

func TestStoreCommands(t *testing.T) {
	dir := t.TempDir()
	path, key, copied, export := filepath.Join(dir, "db"), filepath.Join(dir, "key"), filepath.Join(dir, "copy"), filepath.Join(dir, "export")
	if status, _, stderr := storeCommand(t, "keygen", key); status != 0 {
		t.Fatal(stderr)
	}
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key file is %v, %v", info.Mode(), err)
	}
	if status, _, stderr := storeCommand(t, "keygen", key); status == 0 {
		t.Errorf("keygen overwrites a key: %s", stderr)
	}
	writeStore(t, path, key)
	for _, test := range []struct {
		name   string
		args   []string
		status int
		out    []string // in one of the outputs
		not    []string
	}{
		{"info", []string{"info", "--path", path, "--key-file", key}, 0, []string{"encrypted: yes", "names: 1", "wildcards and globs: 1, with 1 members", "cp cluster: 0 names"}, nil},
		{"info without the key", []string{"info", "--path", path}, statusFailed, []string{"it is encrypted, and there is no key file"}, nil},
		{"info without a path", []string{"info"}, statusUsage, []string{"--path is missing"}, nil},
		{"info of nothing", []string{"info", "--path", filepath.Join(dir, "none")}, statusFailed, []string{"no such file"}, nil},
		{"list", []string{"list", "--path", path, "--key-file", key}, 0, []string{"backend", "v7", "pair", "v8", "cp:1"}, []string{storedKey}},
		{"get", []string{"get", "--path", path, "--key-file", key, "backend", "pair"}, 0, []string{"name: backend", "version: v7", "[redacted]"}, []string{storedKey}},
		{"get with the secrets", []string{"get", "--path", path, "--key-file", key, "--show-secrets", "pair"}, 0, []string{storedKey}, nil},
		{"get of another type", []string{"get", "--path", path, "--key-file", key, "--type", "listener", "backend"}, statusNotAll, []string{`"backend" is not stored`}, nil},
		{"export", []string{"export", "--path", path, "--key-file", key, export}, 0, []string{"3 records were exported"}, nil},
		{"import", []string{"import", "--path", copied, "--key-file", key, export}, 0, []string{"3 records were imported"}, nil},
		{"import without the key", []string{"import", "--path", filepath.Join(dir, "other"), export}, statusFailed, []string{"--key-file is missing"}, nil},
		{"import of something else", []string{"import", "--path", copied, "--key-file", key, key}, statusFailed, []string{"not an export"}, nil},
		{"get from the copy", []string{"get", "--path", copied, "--key-file", key, "-o", "name", "backend"}, 0, []string{"backend"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, stdout, stderr := storeCommand(t, test.args...)
			if status != test.status {
				t.Errorf("status %d, want %d", status, test.status)
			}
			for _, want := range test.out {
				if !strings.Contains(stdout+stderr, want) {
					t.Errorf("there is no %q in\n%s%s", want, stdout, stderr)
				}
			}
			for _, not := range test.not {
				if strings.Contains(stdout+stderr, not) {
					t.Errorf("there is a secret in\n%s", stdout)
				}
			}
		})
	}
	exported, err := os.ReadFile(export)
	if err != nil || bytes.Contains(exported, []byte("backend")) {
		t.Errorf("the export of an encrypted store has a name in it (%v)", err)
	}
}

func TestCheckSaysThatAStoreCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	path, key := filepath.Join(dir, "db"), filepath.Join(dir, "key")
	if status, _, stderr := storeCommand(t, "keygen", key); status != 0 {
		t.Fatal(stderr)
	}
	check := func(more string) (int, string) {
		config := filepath.Join(dir, "relay.yaml")
		text := "listeners: [{address: '127.0.0.1:0'}]\nauthorities: [{name: a, directory: " + dir + "}]\nstore: {path: " + path + more + "}\n"
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		status := run(t.Context(), []string{"check", "--config", config}, &stdout, &stderr)
		return status, stdout.String() + stderr.String()
	}
	if status, out := check(""); status == 0 && !strings.Contains(out, "has 0 records") {
		t.Errorf("of a store that is not there check says %s", out)
	}
	writeStore(t, path, key)
	if _, out := check(", key_file: " + key); !strings.Contains(out, "has 3 records") {
		t.Errorf("of a good store check says %s", out)
	}
	if status, out := check(""); status != statusNotAll || !strings.Contains(out, "set the file aside") {
		t.Errorf("without its key check says %s", out)
	}
}

// A file at store.path with which serve would not start is an error of check, which says so, and where.
func TestCheckSaysThatServeWouldNotStartWithAStore(t *testing.T) {
	dir := t.TempDir()
	folder, file := filepath.Join(dir, "folder"), filepath.Join(dir, "file")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ path, want string }{
		{folder, "store.path: " + folder + ": it is a folder, and the store is a file: for example " + filepath.Join(folder, "accepted.db")},
		{os.DevNull, "store.path: " + os.DevNull + ": it is not a regular file"},
		{filepath.Join(dir, "missing", "db"), "relay.yaml:3:9: store.path: stat " + filepath.Join(dir, "missing") + ": no such file or directory"},
		{filepath.Join(file, "db"), "relay.yaml:3:9: store.path: " + file + " is not a folder"},
	} {
		t.Run(test.path, func(t *testing.T) {
			config := filepath.Join(dir, "relay.yaml")
			text := "listeners: [{address: '127.0.0.1:0'}]\nauthorities: [{name: a, directory: " + folder + "}]\nstore: {path: " + test.path + "}\n"
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			var checked, served bytes.Buffer
			if status := run(t.Context(), []string{"check", "--config", config}, &checked, &checked); status == 0 {
				t.Error("check finds nothing wrong")
			}
			if status := run(t.Context(), []string{"serve", "--config", config}, &served, &served); status == 0 {
				t.Error("serve starts")
			}
			for command, out := range map[string]string{"check": checked.String(), "serve": served.String()} {
				if !strings.Contains(out, test.want) || strings.Contains(out, "aside") {
					t.Errorf("%s says\n%s\nwant %s", command, out, test.want)
				}
			}
		})
	}
}
