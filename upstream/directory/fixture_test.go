package directory

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/watch"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// A directory in memory, a sink that remembers, and a Source between them.

const (
	clusterType  = xdstype.Prefix + "envoy.config.cluster.v3.Cluster"
	endpointType = xdstype.Prefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"
)

var scopes = []cache.Scope{
	{Authority: "onprem"},
	{Authority: "onprem", Partition: "a", OldStyle: true},
	{Authority: "onprem", Partition: "b", OldStyle: true},
}

func key(scope cache.Scope, typeURL, name string) cache.Key {
	return cache.Key{Scope: scope, TypeURL: typeURL, Name: name}
}

// cluster is a cluster as YAML. Same name and content, same bytes.
func cluster(name, content string) string {
	return fmt.Sprintf("---\n'@type': %s\nname: %s\nalt_stat_name: %q\n", clusterType, name, content)
}

// recorder is a sink that remembers.
type recorder struct {
	mu      sync.Mutex
	updates []cache.Update
	calls   int
}

func (r *recorder) Deliver(e delivery.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updates = append(r.updates, e.Types...)
	r.calls++
}

// take returns what was applied since the last time, printed, in the order of
// scopes, types and names, and in how many updates.
func (r *recorder) take() (sent string, updates int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := map[string]string{}
	for _, u := range r.updates {
		table := fmt.Sprintf("%s %s:", u.Scope, u.TypeURL[strings.LastIndexByte(u.TypeURL, '.')+1:])
		line := changes(u.Changes)
		for _, s := range u.Sets {
			full := ""
			if s.Extent.Full() {
				full = "="
			}
			if s.Err != nil {
				line += " " + s.Name + ":" + s.Err.Error()
				continue
			}
			line += fmt.Sprintf(" %s%s[%s]", s.Name, full, strings.TrimSpace(changes(s.Changes)))
		}
		lines[table] += line
	}
	var all []string
	for table, line := range lines {
		all = append(all, table+line)
	}
	slices.Sort(all)
	updates = len(r.updates)
	r.updates = nil
	return strings.Join(all, "\n"), updates
}

func changes(cs []cache.Change) string {
	var words []string
	for _, c := range cs {
		switch {
		case c.Resource != nil:
			// Of a cluster printed by cluster, the content is what is last.
			words = append(words, fmt.Sprintf(" %s=%s", c.Name, c.Resource.Value()[len(c.Resource.Value())-1:]))
		case c.Err != nil:
			words = append(words, fmt.Sprintf(" %s:%v", c.Name, c.Err))
		default:
			words = append(words, " -"+c.Name)
		}
	}
	slices.Sort(words)
	return strings.Join(words, "")
}

// memory is a directory whose files can be changed while it is read.
type memory struct {
	mu     sync.Mutex
	files  fstest.MapFS // nil if there is no such directory
	reads  []time.Time  // when it was listed
	onOpen func(name string)
}

func (m *memory) Open(name string) (fs.File, error) {
	m.mu.Lock()
	onOpen := m.onOpen
	m.mu.Unlock()
	if onOpen != nil {
		onOpen(name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if name == "." {
		m.reads = append(m.reads, time.Now())
	}
	if m.files == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return m.files.Open(name)
}

func (m *memory) set(files map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files = nil
	if files == nil {
		return
	}
	m.files = fstest.MapFS{}
	for name, data := range files {
		m.files[name] = &fstest.MapFile{Data: []byte(data)}
	}
}

// fixture is a Source of a memory, in a synctest bubble.
type fixture struct {
	*Source
	memory  *memory
	sink    *recorder
	log     *strings.Builder
	changes chan struct{}
	begin   chan struct{} // closed for the first reading
	begun   bool
}

// inBubble runs test with a Source that reads when something is written.
func inBubble(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{memory: &memory{}, sink: &recorder{}, log: &strings.Builder{}, changes: make(chan struct{}, 1), begin: make(chan struct{})}
		log := slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		var ctx context.Context
		f.Source, ctx = newSource(folder{fsys: f.memory, path: "dir", authority: "onprem"}, f.sink, log)
		defer f.Close()
		f.done.Go(func() {
			<-f.begin
			f.follow(ctx, func() {}, f.changes)
		})
		test(t, f)
	})
}

// write changes the files and waits until they have been read.
func (f *fixture) write(files map[string]string) {
	f.memory.set(files)
	f.read()
}

// read has the directory read.
func (f *fixture) read() {
	if !f.begun {
		f.begun = true
		close(f.begin)
	} else {
		f.changes <- struct{}{}
		<-time.After(2 * watch.Quiet) // of the bubble's clock
	}
	synctest.Wait()
}

// start starts the topics one after the other, each answered before the next.
func (f *fixture) start(scope cache.Scope, typeURL string, names ...string) {
	for _, name := range names {
		f.Start(key(scope, typeURL, name))
		synctest.Wait()
	}
}

func (f *fixture) expect(t *testing.T, what, want string) {
	t.Helper()
	synctest.Wait()
	if got, _ := f.sink.take(); got != want {
		t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
	}
}

// reads checks when the directory was listed, once, after begin.
func (f *fixture) reads(t *testing.T, begin time.Time, after time.Duration) {
	t.Helper()
	synctest.Wait()
	f.memory.mu.Lock()
	defer f.memory.mu.Unlock()
	at := map[time.Duration]bool{}
	for _, r := range f.memory.reads {
		at[r.Sub(begin)] = true
	}
	if !maps.Equal(at, map[time.Duration]bool{after: true}) {
		t.Errorf("read at %v, want %v", slices.Sorted(maps.Keys(at)), after)
	}
}
