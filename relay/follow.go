package relay

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/xds-relay/xds-relay/internal/watch"
)

// ByWatch is the requester of a reload that a change of the file causes.
const ByWatch = "watch"

// Follow loads the configuration file whenever it changes, until ctx ends. The file may be a symlink, or lie below
// one, as in Kubernetes volumes. If loading fails, Follow tries again from time to time, because files that the
// configuration names may appear later.
func (r *Relay) Follow(ctx context.Context, path string) {
	w := watch.New(r.log, filepath.Dir(path))
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	defer running.Wait()
	for {
		w.Arm() // before the file is read, so that no change is missed
		// Compare with the text of the running configuration, also if that was not loaded from this file. If someone
		// restores the file, the reload clears the recorded problem.
		if text, err := os.ReadFile(path); err != nil || !r.now().cfg.ReadFrom(text) || r.configStatus().Problem != "" {
			_ = r.Load(ctx, ByWatch) // it logs what is wrong
		}
		if !watch.UntilChanged(ctx, w.Changes()) {
			return
		}
	}
}
