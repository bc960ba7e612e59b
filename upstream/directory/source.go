package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/watch"
)

// Source feeds the topics of one authority, in any number of scopes, from the
// files of a directory. It is a [cache.Source]. All its methods may be called
// concurrently.
//
// One goroutine reads the directory and another delivers, so that a
// file system that hangs does not keep known resources from the cache.
type Source struct {
	folder folder
	to     delivery.Receiver
	log    *slog.Logger

	cancel  context.CancelFunc
	done    sync.WaitGroup // of all goroutines except the one that reads
	reading sync.WaitGroup // of the goroutine that reads
	awake   chan struct{}  // has room for one: there is something to deliver

	mu        sync.Mutex
	interests map[table]map[string]bool // by key; true once the state was delivered, and needs only changes
	pending   []cache.Key               // topics whose state was not delivered yet; perhaps stopped since
	state     *state                    // nil until the directory was first read
	changed   map[string]map[string]struct{}
	receipt   *propagation.Receipt // of the oldest unsent change
	status    Status
	unread    bool // the folder could not be read the last time
}

// table is one type in one scope, to which an update belongs.
type table struct {
	scope   cache.Scope
	typeURL string
}

// Status is the state of a directory, for operators.
type Status struct {
	// Checked is when the directory was last read, zero before the first
	// time.
	Checked time.Time
	// Files and Resources are the numbers of those that are served.
	Files, Resources int
	// Errors are all errors of the directory now.
	Errors Errors
	// Ignored are the parts of its files that are ignored, because they are not known.
	Ignored Errors
}

// New makes a Source of the files in dir, and begins to read and watch them. The
// authority is a name or *.suffix, as in the configuration: xdstp names of
// other authorities are errors. The tally decides what becomes of resources that clients would reject, and
// counts them. With a nil tally, resources that no client can read are refused.
func New(dir, authority string, tally *taster.Tally, to delivery.Receiver, log *slog.Logger) *Source {
	s, ctx := newSource(folder{fsys: os.DirFS(dir), path: dir, authority: authority, tally: tally}, to, log)
	w := watch.New(s.log, dir)
	s.done.Go(func() { w.Run(ctx) })
	s.reading.Go(func() { s.follow(ctx, w.Arm, w.Changes()) })
	return s
}

// follow reads the directory whenever it may have changed. It calls arm before
// each reading, so that it misses no change.
func (s *Source) follow(ctx context.Context, arm func(), changes <-chan struct{}) {
	c := &contents{}
	for {
		arm()
		read := time.Now()
		c = s.folder.read(c)
		s.take(c, read)
		if !watch.UntilChanged(ctx, changes) {
			return
		}
	}
}

// NewFS makes a Source of files that do not change, such as those embedded in
// a program. It reads the files at the root of fsys.
func NewFS(fsys fs.FS, authority string, to delivery.Receiver, log *slog.Logger) *Source {
	s, _ := newSource(folder{fsys: fsys, authority: authority}, to, log)
	s.reading.Go(func() { s.take(s.folder.read(&contents{}), time.Now()) })
	return s
}

func newSource(f folder, to delivery.Receiver, log *slog.Logger) (*Source, context.Context) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Source{
		folder: f, to: to, log: log.With("authority", f.authority, "directory", f.path),
		cancel: cancel, awake: make(chan struct{}, 1),
		interests: map[table]map[string]bool{},
		changed:   map[string]map[string]struct{}{},
	}
	s.done.Go(func() {
		for {
			select {
			case <-s.awake:
				s.feed()
			case <-ctx.Done():
				return
			}
		}
	})
	return s, ctx
}

// closing is how long Close waits for the goroutine that reads.
const closing = time.Second

// Close ends the watching and the feeding, and waits until nothing more is
// delivered. It does not wait long for a file system that hangs.
func (s *Source) Close() {
	s.cancel()
	s.done.Wait()
	read := make(chan struct{})
	go func() { defer close(read); s.reading.Wait() }()
	patience := time.NewTimer(closing)
	defer patience.Stop()
	select {
	case <-read:
	case <-patience.C:
		s.log.Warn("the directory is still being read")
	}
}

// Status returns the state of the directory.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Errors, status.Ignored = slices.Clone(status.Errors), slices.Clone(status.Ignored)
	return status
}

// Unread reports whether the directory could not be read the last time. Then it is not known which
// resources are gone.
func (s *Source) Unread() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unread
}

// CheckRead returns why the directory was not read yet, nil if it was.
func (s *Source) CheckRead() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.status.Checked.IsZero():
		return errors.New("the directory was not read yet")
	case s.unread:
		return fmt.Errorf("the directory cannot be read: %w", s.status.Errors)
	}
	return nil
}

// take makes the contents, which were read at a time, the state that is served. It queues and logs the
// changes.
func (s *Source) take(c *contents, at time.Time) {
	items, errs := c.merge()
	next := newState(c, items)

	s.mu.Lock()
	before, statusBefore := s.state, s.status
	if before == nil {
		before = &state{}
	}
	s.state, s.unread = next, len(c.errs) > 0
	s.status = Status{Checked: time.Now(), Files: len(c.files), Resources: len(items), Errors: errs, Ignored: c.ignored()}
	ignored := s.status.Ignored
	changes := 0
	for typeURL, keys := range next.difference(before) {
		changes += len(keys)
		names := s.changed[typeURL]
		if names == nil {
			names = map[string]struct{}{}
			s.changed[typeURL] = names
		}
		for _, key := range keys {
			names[key] = struct{}{}
		}
	}
	if changes > 0 && s.receipt == nil {
		s.receipt = &propagation.Receipt{At: at}
	}
	s.resendUnanswered(before)
	s.mu.Unlock()
	s.wake()

	for _, e := range added(statusBefore.Errors, errs) {
		s.log.Error("bad resource file", "file", e.File, "line", e.Line, "error", e.Err)
	}
	for _, e := range added(statusBefore.Ignored, ignored) {
		s.log.Warn("a part of a resource file is ignored", "file", e.File, "line", e.Line, "field", e.Path, "reason", e.Err)
	}
	if changes > 0 || len(errs) == 0 && len(statusBefore.Errors) > 0 {
		s.log.Info("read resource files", "files", len(c.files), "resources", len(items), "changed", changes, "errors", len(errs))
	}
}

// added returns the elements of now that are not in before.
func added(before, now Errors) (more Errors) {
	known := map[string]struct{}{}
	for _, old := range before {
		known[old.Error()] = struct{}{}
	}
	for _, e := range now {
		if _, there := known[e.Error()]; !there {
			more = append(more, e)
		}
	}
	return more
}

func (s *Source) wake() {
	select {
	case s.awake <- struct{}{}:
	default:
	}
}
