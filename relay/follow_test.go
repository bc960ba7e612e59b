package relay

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/xds-relay/xds-relay/configs"
)

// The file is compared with the configuration that runs, and not with what the file was before.
func TestFollowLoadsAFileThatIsNotWhatRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := func(id string) []byte {
		return fmt.Appendf(nil, "node: {id: %s}\nlisteners: [{address: \"127.0.0.1:0\"}]\nauthorities: [{name: a, directory: %q}]\n", id, dir)
	}
	parsed := func(id string) *configs.Config {
		cfg, err := configs.Parse("relay.yaml", config(id))
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	files := t.TempDir()
	path := writeFile(t, files, "relay.yaml", config("two"))
	r, _ := runRelay(t, string(config("one")), slog.New(slog.DiscardHandler)) // the file has changed since
	r.reloading.Lock()
	r.load = func() (*configs.Config, error) { return configs.Load(path) }
	r.reloading.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Follow(ctx, path)
	}()
	defer func() { cancel(); <-ended }()
	runs := func(id string) func() bool {
		hash := parsed(id).Hash()
		return func() bool { return r.Hash() == hash }
	}
	await(t, "a file that changed during the start", runs("two"))
	if err := r.Reload(t.Context(), parsed("three")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, files, "relay.yaml", config("two")) // the same text
	await(t, "a file that is as before another reload", runs("two"))
}
