package cache

import (
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/xds-relay/xds-relay/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

var testScope = Scope{Authority: "a"}

func testKey(name string) Key { return Key{Scope: testScope, TypeURL: testType, Name: name} }

// res is a resource whose content is its name and the letters in content.
func res(name, version, content string) *Resource {
	return NewResource(Spec{Name: name, Version: version, TypeURL: testType, Value: message(name, content)})
}

// message encodes a message with a name in field 1 and content in field 2.
func message(name, content string) []byte {
	return wire.AppendString(wire.AppendString(nil, 1, name), 2, content)
}

func update(changes ...Change) Update {
	return Update{Scope: testScope, TypeURL: testType, Changes: changes}
}

func setUpdate(u SetUpdate) Update {
	u.Name = Wildcard
	return Update{Scope: testScope, TypeURL: testType, Sets: []SetUpdate{u}}
}

// feeds is a Source that remembers.
type feeds struct {
	mu      sync.Mutex
	running map[Key]bool
	starts  map[Key]int
	again   map[Key]int
	stops   map[Key]int
	stopped []Key // in order
	broken  string
}

func newFeeds() *feeds {
	return &feeds{running: map[Key]bool{}, starts: map[Key]int{}, again: map[Key]int{}, stops: map[Key]int{}}
}

func (f *feeds) Start(k Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[k] {
		f.broken = "started twice: " + k.Name
	}
	f.running[k] = true
	f.starts[k]++
}

func (f *feeds) Refresh(k Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.running[k] {
		f.broken = "refreshed but not running: " + k.Name
	}
	f.again[k]++
}

func (f *feeds) Stop(k Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.running[k] {
		f.broken = "stopped but not running: " + k.Name
	}
	delete(f.running, k)
	f.stops[k]++
	f.stopped = append(f.stopped, k)
}

// counts returns how often k was started and stopped.
func (f *feeds) counts(t testing.TB, k Key) (starts, stops int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != "" {
		t.Error(f.broken)
	}
	return f.starts[k], f.stops[k]
}

// counter is a watcher of an entry that counts its notifications.
type counter struct {
	Watch
	notified, woken int
}

func (c *counter) Changed() Waker { c.notified++; return c }

func (c *counter) Wake() { c.woken++ }

// setCounter is a watcher of a set that counts its notifications.
type setCounter struct {
	SetWatch
	notified, woken int
}

func (c *setCounter) Changed() Waker { c.notified++; return c }

func (c *setCounter) Wake() { c.woken++ }

// content returns what a member is called, and its resource if it was not removed.
func content(m Member) (string, *Resource) {
	if m.News == Removed {
		return m.Name, nil
	}
	return m.Name, m.Resource
}

// entryOf is the entry that a Watch returned.
func entryOf(e *Entry, _ *Resource) *Entry { return e }
