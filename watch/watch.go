// Package watch reports when files may have changed: the operating system's notice of a change,
// once the files are quiet again, and from time to time without a notice.
package watch

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// Quiet is how long nothing must have changed before files are read, so that
	// those who write several, or one in pieces, are not read in the middle.
	Quiet = 100 * time.Millisecond
	// Patience is how long a folder that is never quiet is waited for.
	Patience = time.Second
	// Rescan is after what time files are read in any case: network file systems
	// and symlinks to elsewhere give no notice of changes.
	Rescan = 30 * time.Second
)

// UntilChanged waits until it is time to read again, and returns false if that
// will not be. Changes are those of a [Watcher].
func UntilChanged(ctx context.Context, changes <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(Rescan):
		return true
	case <-changes:
	}
	enough := time.After(Patience)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-enough:
			return true
		case <-time.After(Quiet):
			return true
		case <-changes:
		}
	}
}

// Watcher hears from the operating system that something in one of its folders has
// changed. It also watches the folder above each, in which the folder itself
// may come and go.
//
// Who reads the files does so in a loop: Arm, read, UntilChanged. Then no change falls in
// between. Add and Arm may be called concurrently.
type Watcher struct {
	log     *slog.Logger
	notify  *fsnotify.Watcher // nil if there can be none
	changes chan struct{}     // holds one

	mu      sync.Mutex         // not held while the operating system is called
	folders map[string]*folder // by absolute path

	arming sync.Mutex // guards the state of the folders
}

// folder is the state of a folder that is watched.
type folder struct {
	deaf bool // it could not be watched, as was said in the log
}

// New makes a Watcher of folders. Call Run next.
func New(log *slog.Logger, folders ...string) *Watcher {
	w := &Watcher{log: log, changes: make(chan struct{}, 1), folders: map[string]*folder{}}
	var err error
	if w.notify, err = fsnotify.NewWatcher(); err != nil {
		w.notify = nil
		log.Warn("cannot watch files, reading them from time to time", "every", Rescan, "error", err)
	}
	for _, f := range folders {
		w.Add(f)
	}
	return w
}

// Changes holds a value after something has changed.
func (w *Watcher) Changes() <-chan struct{} { return w.changes }

// Add begins to watch a folder, which need not exist.
func (w *Watcher) Add(path string) {
	path = filepath.Clean(path)
	if abs, err := filepath.Abs(path); err == nil {
		path = abs // the folder above `.` is not `.`
	}
	w.mu.Lock()
	f := w.folders[path]
	added := f == nil
	if added {
		f = &folder{}
		w.folders[path] = f
	}
	w.mu.Unlock()
	if added {
		w.arming.Lock()
		defer w.arming.Unlock()
		w.arm(path, f)
	}
}

// Arm begins to watch anew: what is called like a folder may be another one now.
func (w *Watcher) Arm() {
	w.arming.Lock()
	defer w.arming.Unlock()
	w.mu.Lock()
	folders := maps.Clone(w.folders)
	w.mu.Unlock()
	for path, f := range folders {
		w.arm(path, f)
	}
}

// arm is Arm for one folder. The caller holds arming.
func (w *Watcher) arm(path string, f *folder) {
	if w.notify == nil {
		return
	}
	_ = w.notify.Add(filepath.Dir(path)) // where it fails, the rescan is left
	_ = w.notify.Remove(path)            // fails if it was not watched
	err := w.notify.Add(path)
	silent := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fsnotify.ErrClosed) // not worth a line, or said elsewhere
	if err != nil && !f.deaf && !silent {
		w.log.Warn("cannot watch folder, reading it from time to time", "folder", path, "every", Rescan, "error", err)
	}
	f.deaf = err != nil && !silent
}

// Run passes on what the operating system says until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	if w.notify == nil {
		return
	}
	defer w.notify.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-w.notify.Events:
			if w.concerns(event.Name) {
				w.changed()
			}
		case err := <-w.notify.Errors:
			w.log.Warn("changes of files may have been missed, reading them", "error", err)
			w.changed()
		}
	}
}

// concerns reports whether path is one of the folders, or in one. What else is in the folder
// above is of no interest.
func (w *Watcher) concerns(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.folders[path] != nil || w.folders[filepath.Dir(path)] != nil
}

func (w *Watcher) changed() {
	select {
	case w.changes <- struct{}{}:
	default:
	}
}
