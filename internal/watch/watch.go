// Package watch reports when files may have changed: after a notification of the operating system, once the files
// have been quiet for a moment, and also periodically.
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
	// Quiet is how long nothing must change before files are read, so that they are not read while another process is
	// writing one or several of them.
	Quiet = 100 * time.Millisecond
	// Patience is how long to wait for a folder that is never quiet.
	Patience = time.Second
	// Rescan is the interval at which files are read in any case: network file systems and symlinks to other folders
	// do not notify of changes.
	Rescan = 30 * time.Second
)

// UntilChanged waits until it is time to read again. It returns false if ctx ends first. changes is
// [Watcher.Changes].
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

// Watcher receives notifications from the operating system when something in one of its folders changes. It also
// watches the folder above each, where the folder itself may be created and removed.
//
// Callers read the files in a loop: Arm, read, UntilChanged. So they miss no change. Add and Arm may be called
// concurrently.
type Watcher struct {
	log     *slog.Logger
	notify  *fsnotify.Watcher // nil if the system does not provide one
	changes chan struct{}     // with room for one value

	mu      sync.Mutex         // not held while the operating system is called
	folders map[string]*folder // by absolute path

	arming sync.Mutex // guards the state of the folders
}

// folder is the state of a folder that is watched.
type folder struct {
	failed bool // it cannot be watched, and the log says so
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

// Changes receives a value after something has changed.
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

// Arm begins to watch again: another folder may have taken a folder's name.
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
	_ = w.notify.Add(filepath.Dir(path)) // if it fails, the rescan notices changes
	_ = w.notify.Remove(path)            // fails if it was not watched
	err := w.notify.Add(path)
	silent := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fsnotify.ErrClosed) // not worth a log line, or logged elsewhere
	if err != nil && !f.failed && !silent {
		w.log.Warn("cannot watch folder, reading it from time to time", "folder", path, "every", Rescan, "error", err)
	}
	f.failed = err != nil && !silent
}

// Run passes the operating system's notifications on until ctx ends.
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

// concerns reports whether path is one of the folders, or is in one. Other files in the folder above are ignored.
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
