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

// Settings of the open store hold at once, also for a client that waits for what is stored. Another key is
// an error, as it cannot read the file.
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
	key, err := store.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	err = reload(fmt.Sprintf("key_file: %q", writeFile(t, dir, "key", key)))
	for _, want := range []string{"relay.yaml:4:", "store.key_file: ", "cannot be read with the key in ", "another store.path"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error of another key is %v, want in it %q", err, want)
		}
	}
	if err := reload("wait: 0s, max_age: 10h, max_bytes: 2MiB"); err != nil {
		t.Fatal(err)
	}
	h.awaitHas(t, "it need not wait any more", map[string]string{xdstpX: "stored"})
	if now := r.now().store; now != opened {
		t.Error("the file was opened again")
	}
}

// A store that is taken away and put back at once is the same, though sources still use it.
func TestAStoreIsTakenAwayAndPutBack(t *testing.T) {
	t.Parallel()
	r := startReload(t)
	store := fmt.Sprintf("store: {path: %q}\n", filepath.Join(t.TempDir(), "store"))
	for range 10 {
		r.mustReload(reloadConfig+store, r.listen, r.plane.address)
		r.mustReload(reloadConfig, r.listen, r.plane.address)
	}
	r.mustReload(reloadConfig+store, r.listen, r.plane.address)
	r.awaitLabel("with the store", "first")
	await(t, "it is stored", func() bool { return r.relay.now().store.Stats().Written > 0 })
	r.mustBeOpen("a store came and went")
}
