package relay

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/store"
)

// New settings of the open store apply at once, also to a client that waits for stored resources.
func TestStoreSettingsAreReloaded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "store")
	const format = `
listeners: [{address: "127.0.0.1:0"}]
authorities: [{name: a, servers: [{address: %q}]}]
store: {path: %q, %s}
`
	t.Run("filled", func(t *testing.T) {
		plane := startLabelledPlane(t, "stored")
		r, address := runRelay(t, fmt.Sprintf(format, plane.address, path, "wait: 1h"), slog.New(slog.DiscardHandler))
		h := hold(t, connectTo(t, address), false, &corev3.Node{Id: "n"}, xdstpX)
		h.awaitHas(t, "it is accepted", map[string]string{xdstpX: "stored"})
		await(t, "it is stored", func() bool { return r.now().store.Stats().Written > 0 })
	})
	nobody := freeAddress(t)
	r, address := runRelay(t, fmt.Sprintf(format, nobody, path, "wait: 1h"), slog.New(slog.DiscardHandler))
	reload := func(settings string) error {
		cfg, err := configs.Parse("relay.yaml", fmt.Appendf(nil, format, nobody, path, settings))
		if err != nil {
			t.Fatal(err)
		}
		return r.Reload(t.Context(), cfg)
	}
	h := hold(t, connectTo(t, address), false, &corev3.Node{Id: "n"}, xdstpX)
	await(t, "the client waits", func() bool { return r.cache.Stats().Entries > 0 })
	opened := r.now().store
	if err := reload("wait: 0s, max_age: 10h, max_bytes: 2MiB"); err != nil {
		t.Fatal(err)
	}
	h.awaitHas(t, "it need not wait any more", map[string]string{xdstpX: "stored"})
	if now := r.now().store; now != opened {
		t.Error("the file was opened again")
	}
}

// The open store gets another key, also one in the same file, or none. Streams stay open, and a relay that starts
// with the new key has what was accepted. A configuration that cannot be loaded leaves the key unchanged.
func TestAStoreGetsAnotherKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, keyFile := filepath.Join(dir, "store"), filepath.Join(dir, "key")
	writeKey := func(file string) (path string) {
		key, err := store.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		return writeFile(t, dir, file, key)
	}
	stored := func(key string) string {
		if key != "" {
			key = fmt.Sprintf(", key_file: %q", key)
		}
		return fmt.Sprintf("store: {path: %q, wait: 0s%s}\n", path, key)
	}
	r := startReload(t)
	r.mustReload(reloadConfig+stored(""), r.listen, r.plane.address)
	r.awaitLabel("with a store", "first")
	await(t, "what the cache had before is stored", func() bool { return records(t, r.relay.now().store) == 4 })
	opened, streams := r.relay.now().store, r.plane.opened()
	mustHave := func(when, key string) {
		t.Helper()
		var is *store.Key
		if key != "" {
			var err error
			if is, err = store.ReadKey(key); err != nil {
				t.Fatal(err)
			}
		}
		if !opened.HasKey(is) {
			t.Errorf("%s: the store has another key", when)
		}
	}
	for _, next := range []string{writeKey("key"), writeKey("other"), "", keyFile} {
		r.mustReload(reloadConfig+stored(next), r.listen, r.plane.address)
		mustHave("with "+next, next)
	}
	writeKey("key") // another one, in the same file
	r.mustReload(reloadConfig+stored(keyFile), r.listen, r.plane.address)
	mustHave("another key in the same file", keyFile)
	if now := r.relay.now().store; now != opened || r.plane.opened() != streams {
		t.Errorf("the file was opened again, or streams to the control plane were: %d, and %d before", r.plane.opened(), streams)
	}
	writeFile(t, dir, "bad", []byte("no key"))
	for _, bad := range []struct{ config, want string }{
		{reloadConfig + stored(filepath.Join(dir, "bad")), "store.key_file: " + filepath.Join(dir, "bad") + ": it is not a key file"},
		{strings.Replace(reloadConfig, "}]", `}, {address: "%[2]s"}]`, 1) + stored(""), "address already in use"},
	} {
		if err := r.reload(fmt.Sprintf(bad.config, r.listen, r.plane.address)); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("the error is %v, want %q", err, bad.want)
		}
		mustHave("after an error", keyFile)
	}
	r.mustBeOpen("the store got other keys")
	r.mustReload(reloadConfig, r.listen, r.plane.address)
	r.awaitLabel("without the store", "first")
	<-opened.closed
	nobody := freeAddress(t)
	config := strings.Replace(reloadConfig, "%[1]s", "127.0.0.1:0", 1)
	_, address := runRelay(t, fmt.Sprintf(strings.Replace(config, "%[2]s", "%[1]s", 1)+stored(keyFile), nobody), slog.New(slog.DiscardHandler))
	h := hold(t, connectTo(t, address), false, &corev3.Node{Id: "n"}, xdstpX)
	h.awaitHas(t, "from the store, with the newest key", map[string]string{xdstpX: "first"})
}

// A store that is removed and added again at once is the same one, because sources still use it.
func TestAStoreIsTakenAwayAndPutBack(t *testing.T) {
	t.Parallel()
	r := startReload(t)
	kept := fmt.Sprintf("store: {path: %q}\n", filepath.Join(t.TempDir(), "store"))
	for range 10 {
		r.mustReload(reloadConfig+kept, r.listen, r.plane.address)
		r.mustReload(reloadConfig, r.listen, r.plane.address)
	}
	r.mustReload(reloadConfig+kept, r.listen, r.plane.address)
	r.awaitLabel("with the store", "first")
	await(t, "the name and both members are stored, with the set", func() bool { return records(t, r.relay.now().store) == 4 })
	r.mustBeOpen("a store came and went")
}

// records returns how many records a store has.
func records(t *testing.T, s *sharedStore) (n int) {
	t.Helper()
	unreadable, err := s.All(func(*store.Record) bool { n++; return true })
	if err != nil || unreadable > 0 {
		t.Fatalf("%d records cannot be read: %v", unreadable, err)
	}
	return n
}
