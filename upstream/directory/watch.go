package directory

// When the directory is read: after a change, once it is quiet again, and from
// time to time.

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long nothing must have changed before files are read, so that
	// those who write several, or one in pieces, are not read in the middle.
	quiet = 100 * time.Millisecond
	// patience is how long a directory that is never quiet is waited for.
	patience = time.Second
	// rescan is after what time files are read in any case: network file systems
	// and symlinks to elsewhere give no notice of changes.
	rescan = 30 * time.Second
)

// follow reads the directory whenever it may have changed. arm is called before
// each reading, so that no change falls in between.
func (s *Source) follow(ctx context.Context, arm func(), changes <-chan struct{}) {
	c := &contents{}
	for {
		arm()
		c = s.folder.read(c)
		s.take(c)
		if !untilChanged(ctx, changes) {
			return
		}
	}
}

// untilChanged waits until it is time to read again, and returns false if that
// will not be.
func untilChanged(ctx context.Context, changes <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(rescan):
		return true
	case <-changes:
	}
	enough := time.After(patience)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-enough:
			return true
		case <-time.After(quiet):
			return true
		case <-changes:
		}
	}
}

// watcher hears from the operating system that something in a directory has
// changed. It also watches the directory above, in which the directory itself
// may come and go.
type watcher struct {
	dir     string
	log     *slog.Logger
	notify  *fsnotify.Watcher // nil if there can be none
	changes chan struct{}     // holds one
	deaf    bool              // dir could not be watched, as was said in the log
}

func newWatcher(dir string, log *slog.Logger) *watcher {
	w := &watcher{dir: filepath.Clean(dir), log: log, changes: make(chan struct{}, 1)}
	if abs, err := filepath.Abs(dir); err == nil {
		w.dir = abs // the directory above `.` is not `.`
	}
	var err error
	if w.notify, err = fsnotify.NewWatcher(); err != nil {
		w.notify = nil
		w.warn(err)
	}
	return w
}

func (w *watcher) warn(err error) {
	w.log.Warn("cannot watch directory, reading it from time to time", "every", rescan, "error", err)
}

// arm begins to watch, or begins anew: what is called dir may be another
// directory now.
func (w *watcher) arm() {
	if w.notify == nil {
		return
	}
	_ = w.notify.Add(filepath.Dir(w.dir)) // where it fails, the rescan is left
	_ = w.notify.Remove(w.dir)            // fails if it was not watched
	err := w.notify.Add(w.dir)
	silent := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fsnotify.ErrClosed) // not worth a line, or said elsewhere
	if err != nil && !w.deaf && !silent {
		w.warn(err)
	}
	w.deaf = err != nil && !silent
}

// run passes on what the operating system says until ctx ends.
func (w *watcher) run(ctx context.Context) {
	if w.notify == nil {
		return
	}
	defer w.notify.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-w.notify.Events:
			// Above, everything else is of no interest.
			if filepath.Dir(event.Name) == w.dir || event.Name == w.dir {
				w.changed()
			}
		case err := <-w.notify.Errors:
			w.log.Warn("changes of the directory may have been missed, reading it", "error", err)
			w.changed()
		}
	}
}

func (w *watcher) changed() {
	select {
	case w.changes <- struct{}{}:
	default:
	}
}
