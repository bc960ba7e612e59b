package relay

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/xds-relay/xds-relay/watch"
)

// ByWatch is who wants a reload when the file has changed.
const ByWatch = "watch"

// Follow loads the configuration file whenever it changes, until ctx ends. The file may be a symlink, or
// below one, as in the volumes of Kubernetes. What cannot be loaded is tried again from time to time:
// files that it names may come later.
func (r *Relay) Follow(ctx context.Context, path string) {
	w := watch.New(r.log, filepath.Dir(path))
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	defer running.Wait()
	for {
		w.Arm() // before the file is read, so that no change falls in between
		// What counts is the text of what runs, also if it was loaded in another way. A file that is put back as it was
		// ends a problem.
		if text, err := os.ReadFile(path); err != nil || !r.now().cfg.ReadFrom(text) || r.configStatus().Problem != "" {
			_ = r.Load(ctx, ByWatch) // it logs what is wrong
		}
		if !watch.UntilChanged(ctx, w.Changes()) {
			return
		}
	}
}
