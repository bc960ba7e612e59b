package directory

// Real files, and the operating system's notice of their changes.

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/watch"
)

// deadline is for what needs a notice: it is shorter than the time after which
// files are read without one.
const deadline = watch.Rescan / 2

// channel is a sink to wait at.
type channel chan cache.Update

func (c channel) Deliver(e delivery.Event) {
	for _, u := range e.Types {
		c <- u
	}
}

// onDisk is a Source of a directory on disk, with interest in some names.
type onDisk struct {
	*Source
	updates channel
}

func newOnDisk(t *testing.T, dir string, names ...string) *onDisk {
	t.Helper()
	d := &onDisk{updates: make(channel, 1000)}
	d.Source = New(dir, "onprem", nil, d.updates, slog.New(slog.DiscardHandler))
	t.Cleanup(d.Close)
	for _, name := range names {
		d.Start(key(scopes[1], clusterType, name))
	}
	return d
}

// expect waits for an update, which must be want, as recorder prints changes.
func (d *onDisk) expect(t *testing.T, what, want string) {
	t.Helper()
	select {
	case u := <-d.updates:
		if got := strings.TrimSpace(changes(u.Changes)); got != want {
			t.Fatalf("%s: got %s, want %s", what, got, want)
		}
	case <-time.After(deadline):
		t.Fatalf("%s: got nothing, want %s; errors: %v", what, want, d.Status().Errors)
	}
}

func write(t *testing.T, path, data string) {
	t.Helper()
	check(t, os.WriteFile(path+".new", []byte(data), 0o600))
	check(t, os.Rename(path+".new", path))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFilesAreWatched(t *testing.T) {
	dir := t.TempDir()
	a := filepath.Join(dir, "a.yaml")
	write(t, a, cluster("foo", "1"))
	d := newOnDisk(t, dir, "foo")
	d.expect(t, "at first", "foo=1")

	write(t, a, cluster("foo", "2"))
	d.expect(t, "renamed into place", "foo=2")
	check(t, os.WriteFile(a, []byte(cluster("foo", "3")), 0o600))
	d.expect(t, "written in place", "foo=3")
	check(t, os.Remove(a))
	d.expect(t, "removed", "-foo")
	write(t, filepath.Join(dir, "b.yaml"), cluster("foo", "4"))
	d.expect(t, "in a new file", "foo=4")
}

// Kubernetes: every file is a symlink through ..data, which is replaced as a
// whole.
func TestConfigMapIsSwappedAsAWhole(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a", "b", "c", "d"}
	swap := func(generation string) {
		version := filepath.Join(dir, "..2024_"+generation)
		check(t, os.Mkdir(version, 0o700))
		for _, name := range names {
			check(t, os.WriteFile(filepath.Join(version, name+".yaml"), []byte(cluster(name, generation)), 0o600))
		}
		old, err := os.Readlink(filepath.Join(dir, "..data"))
		check(t, os.Symlink(filepath.Base(version), filepath.Join(dir, "..data_tmp")))
		check(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		if err == nil {
			check(t, os.RemoveAll(filepath.Join(dir, old)))
		}
	}
	swap("0")
	for _, name := range names {
		check(t, os.Symlink(filepath.Join("..data", name+".yaml"), filepath.Join(dir, name+".yaml")))
	}
	d := newOnDisk(t, dir)
	// All are asked for at once: the source reads one state of its interests.
	d.mu.Lock()
	for _, name := range names {
		tb := table{scopes[1], clusterType}
		if d.interests[tb] == nil {
			d.interests[tb] = map[string]bool{}
		}
		d.interests[tb][name] = false
		d.pending = append(d.pending, key(scopes[1], clusterType, name))
	}
	d.mu.Unlock()
	d.wake()
	d.expect(t, "at first", "a=0 b=0 c=0 d=0")
	for i := 1; i < 8; i++ {
		g := fmt.Sprint(i)
		swap(g)
		d.expect(t, "after a swap", "a="+g+" b="+g+" c="+g+" d="+g)
	}
	if errs := d.Status().Errors; len(errs) > 0 {
		t.Error(errs)
	}
}

func TestDirectoryMayComeAndGo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "xds")
	d := newOnDisk(t, dir, "foo")
	d.expect(t, "without a directory", "foo:Unavailable: the authority's directory could not be read yet")

	check(t, os.Mkdir(dir, 0o700))
	d.expect(t, "empty", "-foo")
	write(t, filepath.Join(dir, "a.yaml"), cluster("foo", "1"))
	d.expect(t, "made", "foo=1")

	check(t, os.Rename(dir, dir+".old"))
	d.awaitError(t, dir+": no such directory")
	check(t, os.Mkdir(dir+".next", 0o700))
	write(t, filepath.Join(dir+".next", "a.yaml"), cluster("foo", "2"))
	check(t, os.Rename(dir+".next", dir))
	d.expect(t, "replaced", "foo=2")
	write(t, filepath.Join(dir, "a.yaml"), cluster("foo", "3"))
	d.expect(t, "watched after that", "foo=3")
}

func TestDirectoryMayBeASymlinkThatIsSwapped(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "current")
	for _, v := range []string{"1", "2"} {
		check(t, os.Mkdir(filepath.Join(parent, v), 0o700))
		write(t, filepath.Join(parent, v, "a.yaml"), cluster("foo", v))
	}
	check(t, os.Symlink("1", dir))
	d := newOnDisk(t, dir, "foo")
	d.expect(t, "at first", "foo=1")
	check(t, os.Symlink("2", dir+".new"))
	check(t, os.Rename(dir+".new", dir))
	d.expect(t, "swapped", "foo=2")
	write(t, filepath.Join(parent, "2", "a.yaml"), cluster("foo", "3"))
	d.expect(t, "watched after that", "foo=3")
}

// awaitError waits until the status has that error.
func (d *onDisk) awaitError(t *testing.T, want string) {
	t.Helper()
	giveUp := time.After(deadline)
	tick := time.NewTicker(watch.Quiet / 10)
	defer tick.Stop()
	for d.Status().Errors.Error() != want {
		select {
		case <-tick.C:
		case <-giveUp:
			t.Fatalf("errors: %v, want %s", d.Status().Errors, want)
		}
	}
}

func TestRelativeDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "a.yaml", cluster("foo", "1"))
	d := newOnDisk(t, ".", "foo")
	d.expect(t, "at first", "foo=1")
	write(t, "b.yaml", "bad")
	d.awaitError(t, `b.yaml:1: neither a resource (with "@type") nor a Resource (with "resource") nor a DiscoveryResponse (with "resources")`)
	write(t, "a.yaml", cluster("foo", "2"))
	d.expect(t, "changed", "foo=2")
}

func TestLoadSaysAllThatIsWrong(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), cluster("foo", "1")+cluster("bar", "1"))
	write(t, filepath.Join(dir, "b.yaml"), cluster("baz", "1")+"connectTimout: 1s\nname: [b]\n")
	write(t, filepath.Join(dir, "c.json"), `{"@type": "`+clusterType+`", "name": "foo"}`)
	write(t, filepath.Join(dir, "d.pb"), "garbage")
	write(t, filepath.Join(dir, "e.textpb"), "")
	check(t, os.Symlink("nowhere", filepath.Join(dir, "f.yaml")))
	resources, ignored, err := Load(dir, "onprem", nil)
	var names []string
	for _, r := range resources {
		names = append(names, r.Name())
	}
	if !slices.Equal(names, []string{"foo", "bar"}) {
		t.Errorf("resources %v", names)
	}
	if got, want := strings.ReplaceAll(ignored.Error(), dir, "DIR"), "DIR/b.yaml:5: connectTimout: Cluster has no such field\nDIR/b.yaml:3: name: the field is there again, and the last one counts"; got != want {
		t.Errorf("ignored:\n%s\nwant:\n%s", got, want)
	}
	want := strings.ReplaceAll(`DIR/b.yaml:6: invalid value for string field name (want a string, in quotes)
DIR/c.json:1: Cluster "foo" is in DIR/a.yaml:2 already, which is the one that is served
DIR/d.pb: neither a DiscoveryResponse, a Resource nor an Any: proto: cannot parse reserved wire type
DIR/e.textpb: empty (to remove its resources, remove the file)
DIR/f.yaml: no such file or directory`, "DIR", dir)
	if got := strings.ReplaceAll(err.Error(), "\u00a0", " "); got != want {
		t.Errorf("errors:\n%s\nwant:\n%s", got, want)
	}
	if e, ok := errors.AsType[Error](err); !ok || e.Line != 6 {
		t.Errorf("the first error is %#v", e)
	}
	if _, _, err := Load(filepath.Join(dir, "none"), "onprem", nil); err == nil || err.Error() != filepath.Join(dir, "none")+": no such directory" {
		t.Errorf("of no directory: %v", err)
	}
	if _, _, err := Load(filepath.Join(dir, "a.yaml"), "onprem", nil); err == nil || err.Error() != filepath.Join(dir, "a.yaml")+": not a directory" {
		t.Errorf("of a file: %v", err)
	}
	good := t.TempDir()
	if resources, _, err := Load(good, "onprem", nil); err != nil || len(resources) != 0 {
		t.Errorf("of nothing: %v, %v", resources, err)
	}
}
