package relay

import (
	"bytes"
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
	loaded, _ := os.ReadFile(path) // if it fails now, it is loaded later
	for {
		w.Arm() // before the file is read, so that no change falls in between
		// A file that is put back as it was ends a problem.
		if text, err := os.ReadFile(path); err != nil || !bytes.Equal(text, loaded) || r.configStatus().Problem != "" {
			if r.Load(ctx, ByWatch) == nil {
				loaded = text
			}
		}
		if !watch.UntilChanged(ctx, w.Changes()) {
			return
		}
	}
}
