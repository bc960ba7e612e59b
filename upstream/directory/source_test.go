package directory

import (
	"crypto/rand"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

func TestANameIsAnsweredAtOnceWhetherItIsThereOrNot(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.write(map[string]string{"a.yaml": cluster("foo", "1")})
		f.expect(t, "before anybody is interested", "")
		f.start(scopes[1], clusterType, "foo", "bar")
		f.start(scopes[1], endpointType, "foo")
		f.expect(t, "after", "onprem/a Cluster: foo=1 -bar\nonprem/a ClusterLoadAssignment: -foo")
	})
}

func TestInterestBeforeTheFirstReadingIsAnsweredAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &recorder{}
		m := &memory{files: fstest.MapFS{"a.yaml": {Data: []byte(cluster("foo", "1"))}}}
		reading := make(chan struct{})
		m.onOpen = func(string) { <-reading }
		s := NewFS(m, "onprem", sink, slog.New(slog.DiscardHandler))
		defer s.Close()
		s.Start(key(scopes[0], clusterType, "bar"))
		s.Start(key(scopes[0], clusterType, "foo"))
		synctest.Wait()
		if got, _ := sink.take(); got != "" {
			t.Errorf("updates before anything was read: %s", got)
		}
		close(reading)
		synctest.Wait()
		if got, updates := sink.take(); got != "onprem Cluster: -bar foo=1" || updates != 1 {
			t.Errorf("got %q in %d updates", got, updates)
		}
	})
}

func TestInterestThatIsLostBeforeItIsAnsweredIsNotAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		for _, name := range []string{"foo", "bar", "baz"} {
			f.Start(key(scopes[1], clusterType, name))
			f.Stop(key(scopes[1], clusterType, name))
		}
		f.Start(key(scopes[1], clusterType, "bar"))
		f.Stop(key(scopes[1], clusterType, "bar"))
		f.Start(key(scopes[1], clusterType, "bar"))
		f.write(map[string]string{"a.yaml": cluster("foo", "1") + cluster("bar", "1")})
		f.expect(t, "at first", "onprem/a Cluster: bar=1")
		f.write(map[string]string{"a.yaml": cluster("foo", "2") + cluster("bar", "2")})
		f.expect(t, "then", "onprem/a Cluster: bar=2")
	})
}

func TestEveryScopeGetsTheSameContentInOneUpdatePerType(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.write(map[string]string{"a.yaml": cluster("foo", "1"), "b.yaml": cluster("bar", "1")})
		for _, s := range scopes {
			f.Start(key(s, clusterType, "foo"))
			f.Start(key(s, clusterType, "bar"))
			f.Start(key(s, clusterType, cache.Wildcard))
		}
		f.Start(key(scopes[0], endpointType, "foo"))
		synctest.Wait()
		f.sink.take()
		f.write(map[string]string{
			"a.yaml": cluster("foo", "2"),
			"b.yaml": cluster("bar", "2") + "---\n'@type': " + endpointType + "\ncluster_name: foo\n",
		})
		sent, updates := f.sink.take()
		if sent != `onprem Cluster: bar=2 foo=2 *[bar=2 foo=2]
onprem ClusterLoadAssignment: foo=o
onprem/a Cluster: bar=2 foo=2 *[bar=2 foo=2]
onprem/b Cluster: bar=2 foo=2 *[bar=2 foo=2]` {
			t.Errorf("got\n%s", sent)
		}
		if updates != 4 {
			t.Errorf("in %d updates, want one per type and scope", updates)
		}
	})
}

func TestOnlyChangesAreSent(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		files := map[string]string{"a.yaml": cluster("foo", "1") + cluster("bar", "1"), "b.yaml": cluster("baz", "1")}
		f.write(files)
		f.start(scopes[1], clusterType, "foo", "bar", "baz", "none", cache.Wildcard)
		f.expect(t, "at first", "onprem/a Cluster: foo=1 bar=1 baz=1 -none *=[bar=1 baz=1 foo=1]")
		f.write(files)
		f.expect(t, "when all is as it was", "")
		files["a.yaml"] = cluster("bar", "1") + cluster("foo", "2")
		f.write(files)
		f.expect(t, "a change", "onprem/a Cluster: foo=2 *[foo=2]")
		files["a.yaml"] = cluster("bar", "1")
		f.write(files)
		f.expect(t, "a removal from a file", "onprem/a Cluster: -foo *[-foo]")
		files["c.yaml"] = files["a.yaml"]
		delete(files, "a.yaml")
		f.write(files)
		f.expect(t, "a file with another name", "")
		delete(files, "b.yaml")
		f.write(files)
		f.expect(t, "a removed file", "onprem/a Cluster: -baz *[-baz]")
	})
}

func TestAnotherVersionIsSent(t *testing.T) {
	const file = "version: '%d'\nresource: {'@type': " + clusterType + ", name: foo, alt_stat_name: '%d'}\n"
	inBubble(t, func(t *testing.T, f *fixture) {
		f.write(map[string]string{"a.yaml": fmt.Sprintf(file, 1, 1)})
		f.Start(key(scopes[1], clusterType, "foo"))
		f.expect(t, "at first", "onprem/a Cluster: foo=1")
		f.write(map[string]string{"a.yaml": fmt.Sprintf(file, 2, 1)})
		f.expect(t, "of the same content", "onprem/a Cluster: foo=1")
		f.write(map[string]string{"a.yaml": fmt.Sprintf(file, 2, 2)})
		f.expect(t, "not another version, but other content", "onprem/a Cluster: foo=2")
	})
}

// TP1: xdstp names are had by their names and through globs only.
func TestWildcardHasTheOldStyleNamesOnly(t *testing.T) {
	const name = "xdstp://onprem/envoy.config.cluster.v3.Cluster/foo"
	inBubble(t, func(t *testing.T, f *fixture) {
		files := map[string]string{"a.yaml": cluster("foo", "1") + cluster(name, "1")}
		f.write(files)
		f.Start(key(scopes[1], clusterType, cache.Wildcard))
		f.Start(key(scopes[0], clusterType, name))
		f.expect(t, "at first", "onprem Cluster: "+name+"=1\nonprem/a Cluster: *=[foo=1]")
		f.write(map[string]string{"a.yaml": cluster("foo", "1") + cluster(name, "2")})
		f.expect(t, "then", "onprem Cluster: "+name+"=2")
	})
}

// TP1: "Glob": what is in a directory, with exactly the parameters.
func TestGlobsHaveWhatIsInTheirDirectory(t *testing.T) {
	const (
		d    = "xdstp://onprem/envoy.config.cluster.v3.Cluster/"
		a, b = d + "foo/a", d + "foo/b"
		glob = d + "foo/*"
	)
	inBubble(t, func(t *testing.T, f *fixture) {
		f.Start(key(scopes[0], clusterType, glob))
		files := map[string]string{
			"a.yaml": cluster("foo", "1") + cluster(a, "1"),
			"b.yaml": cluster(d+"foo/deep/a", "1") + cluster(d+"a", "1") + cluster(a+"?k=v", "1"),
		}
		f.write(files)
		f.expect(t, "at first", "onprem Cluster: "+glob+"=["+a+"=1]")
		f.Start(key(scopes[0], clusterType, glob+"?k=v"))
		f.expect(t, "with parameters", "onprem Cluster: "+glob+"?k=v=["+a+"?k=v=1]")
		f.Start(key(scopes[0], clusterType, d+"none/*"))
		f.expect(t, "of another directory", "onprem Cluster: "+d+"none/*=[]")
		f.Start(key(scopes[0], clusterType, a))
		f.expect(t, "of a name", "onprem Cluster: "+a+"=1")
		files["a.yaml"] = cluster("foo", "1") + cluster(a, "2") + cluster(b, "1")
		f.write(files)
		f.expect(t, "a change and a new one", "onprem Cluster: "+a+"=2 "+glob+"["+a+"=2 "+b+"=1]")
		delete(files, "a.yaml")
		f.write(files)
		f.expect(t, "all gone", "onprem Cluster: -"+a+" "+glob+"[-"+a+" -"+b+"]")
		f.Stop(key(scopes[0], clusterType, glob))
		files["a.yaml"] = cluster(b, "1")
		f.write(files)
		f.expect(t, "given up", "")
	})
}

func TestSpellingsOfAnXdstpNameHaveOneKey(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.write(map[string]string{"a.yaml": cluster("xdstp://onprem/envoy.config.cluster.v3.Cluster/a%3Ab?y=1&x=2", "1")})
		f.Start(key(scopes[0], clusterType, "xdstp://onprem/envoy.config.cluster.v3.Cluster/a:b?x=2&y=1"))
		f.expect(t, "under the canonical name", "onprem Cluster: xdstp://onprem/envoy.config.cluster.v3.Cluster/a:b?x=2&y=1=1")
	})
}

func TestNothingIsSentAfterStop(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.write(map[string]string{"a.yaml": cluster("foo", "1")})
		foo, all := key(scopes[1], clusterType, "foo"), key(scopes[1], clusterType, cache.Wildcard)
		f.Start(foo)
		f.Start(all)
		synctest.Wait()
		f.sink.take()
		f.Stop(foo)
		f.Stop(all)
		f.write(map[string]string{"a.yaml": cluster("foo", "2")})
		f.expect(t, "after Stop", "")
		f.Start(foo)
		f.Stop(foo)
		f.Start(foo)
		synctest.Wait()
		f.Start(all)
		synctest.Wait()
		if got, _ := f.sink.take(); !strings.HasSuffix(got, " foo=2 *=[foo=2]") {
			t.Errorf("updates after another Start: %s", got)
		}
		if n := len(f.pending); n != 0 {
			t.Errorf("%d topics are still noted as new", n)
		}
		if n := len(f.interests); n != 1 {
			t.Errorf("%d tables of interests, want 1", n)
		}
		f.Stop(foo)
		f.Stop(all)
		if n := len(f.interests); n != 0 {
			t.Errorf("%d tables of interests after the last Stop", n)
		}
	})
}

// Envoy reads such a file, too.
func TestWhatIsNotKnownIsIgnoredAndLogged(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.start(scopes[1], clusterType, "foo")
		f.write(map[string]string{"a.yaml": cluster("foo", "1") + "lb_polcy: MAGLEV\n"})
		f.expect(t, "with an unknown field", "onprem/a Cluster: foo=1")
		const want = "dir/a.yaml:5: lb_polcy: Cluster has no such field"
		if s := f.Status(); s.Ignored.Error() != want || len(s.Errors) != 0 {
			t.Errorf("status %+v, want %s ignored", s, want)
		}
		f.write(map[string]string{"a.yaml": cluster("foo", "2") + "lb_polcy: MAGLEV\n"})
		const line = `level=WARN msg="a part of a resource file is ignored" authority=onprem directory=dir file=dir/a.yaml line=5 field=lb_polcy reason="Cluster has no such field"`
		if got := strings.Count(f.log.String(), line); got != 1 {
			t.Errorf("%d such lines in the log, want one:\n%s", got, f.log)
		}
	})
}

func TestBadFileKeepsItsLastGoodState(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.write(map[string]string{"a.yaml": cluster("foo", "1") + cluster("bar", "1"), "b.yaml": cluster("baz", "1")})
		f.start(scopes[1], clusterType, cache.Wildcard, "foo")
		f.sink.take()
		bad := cluster("foo", "2") + "dns_refresh_rate: soon\n"
		f.write(map[string]string{"a.yaml": bad, "b.yaml": cluster("baz", "2")})
		f.expect(t, "with a bad file", "onprem/a Cluster: *[baz=2]")
		want := `dir/a.yaml:5: invalid google.protobuf.Duration value "soon"`
		if s := f.Status(); s.Errors.Error() != want || s.Files != 2 || s.Resources != 3 {
			t.Errorf("status %+v, want the error %s", s, want)
		}
		f.Start(key(scopes[1], clusterType, "none"))
		f.expect(t, "a name that is not there", "onprem/a Cluster: -none")
		if got := strings.Count(f.log.String(), "level=ERROR"); got != 1 {
			t.Errorf("%d errors in the log, want one:\n%s", got, f.log)
		}
		if want := `level=ERROR msg="bad resource file" authority=onprem directory=dir file=dir/a.yaml line=5 error="invalid`; !strings.Contains(f.log.String(), want) {
			t.Errorf("log has no %s:\n%s", want, f.log)
		}
		f.write(map[string]string{"a.yaml": bad, "b.yaml": cluster("baz", "2"), "c.yaml": ""})
		if got := strings.Count(f.log.String(), "level=ERROR"); got != 2 {
			t.Errorf("%d errors in the log after another bad file, want two:\n%s", got, f.log)
		}
		f.write(map[string]string{"a.yaml": cluster("foo", "3")})
		f.expect(t, "when it is good again", "onprem/a Cluster: -none foo=3 *[-bar -baz foo=3]")
		if s := f.Status(); len(s.Errors) != 0 {
			t.Errorf("errors %v", s.Errors)
		}
		f.write(map[string]string{"a.yaml": bad})
		f.write(map[string]string{})
		f.expect(t, "when a bad file is removed", "onprem/a Cluster: -foo *[-foo]")
	})
}

// Invariant: absent is only said when the authority said it.
func TestNothingIsAbsentWhileAFileWasNeverGood(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.write(map[string]string{"a.yaml": cluster("foo", "1"), "b.yaml": "bad"})
		f.start(scopes[1], clusterType, "foo", "bar", cache.Wildcard)
		f.expect(t, "with a bad file",
			"onprem/a Cluster: foo=1 bar:Unavailable: the authority's file b.yaml could not be read yet *=[foo=1]")
		f.read()
		f.expect(t, "when nothing has changed", "")
		f.write(map[string]string{"a.yaml": cluster("foo", "1"), "b.yaml": cluster("baz", "1")})
		f.expect(t, "when it is good", "onprem/a Cluster: -bar *[baz=1]")
		f.write(map[string]string{"a.yaml": cluster("foo", "1"), "b.yaml": cluster("baz", "1"), "c.yaml": "bad"})
		f.expect(t, "with another bad file", "")
	})
}

func TestMissingDirectoryKeepsTheLastGoodState(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.write(nil)
		f.start(scopes[1], clusterType, "foo", cache.Wildcard)
		f.expect(t, "before there is a directory", "onprem/a Cluster: foo:Unavailable: the authority's directory could not be read yet"+
			" *:Unavailable: the authority's directory could not be read yet")
		if got := f.Status().Errors.Error(); got != "dir: no such directory" {
			t.Errorf("status: %s", got)
		}
		f.write(map[string]string{"a.yaml": cluster("foo", "1")})
		f.expect(t, "when there is", "onprem/a Cluster: foo=1 *=[foo=1]")
		f.write(nil)
		f.Start(key(scopes[1], clusterType, "bar"))
		f.expect(t, "when it is gone", "onprem/a Cluster: -bar")
		if s := f.Status(); s.Errors.Error() != "dir: no such directory" || s.Resources != 1 {
			t.Errorf("status: %+v", s)
		}
		f.write(map[string]string{"a.yaml": cluster("foo", "2")})
		f.expect(t, "when it is back", "onprem/a Cluster: foo=2 *[foo=2]")
		if got := strings.Count(f.log.String(), "no such directory"); got != 2 {
			t.Errorf("said %d times that there is no directory, want twice:\n%s", got, f.log)
		}
	})
}

func TestOfAResourceInTwoFilesTheFirstIsServed(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		files := map[string]string{"b.yaml": cluster("bar", "2") + cluster("foo", "2"), "a.yaml": cluster("foo", "1")}
		f.write(files)
		f.Start(key(scopes[1], clusterType, cache.Wildcard))
		f.expect(t, "with both", "onprem/a Cluster: *=[bar=2 foo=1]")
		want := `dir/b.yaml:6: Cluster "foo" is in dir/a.yaml:2 already, which is the one that is served`
		if got := f.Status().Errors.Error(); got != want {
			t.Errorf("errors %s, want %s", got, want)
		}
		delete(files, "a.yaml")
		f.write(files)
		f.expect(t, "without the first", "onprem/a Cluster: *[foo=2]")
	})
}

func TestOtherFilesAreIgnored(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.memory.mu.Lock()
		f.memory.onOpen = func(name string) {
			if name != "." && name != "a.yaml" && name != "d.yaml" {
				t.Errorf("%s was opened", name)
			}
		}
		f.memory.files = fstest.MapFS{
			"a.yaml":      {Data: []byte(cluster("foo", "1"))},
			".a.yaml":     {Data: []byte("bad")},
			"..data/b.pb": {Data: []byte("bad")},
			"a.yaml~":     {Data: []byte("bad")},
			"a.YAML.bak":  {Data: []byte("bad")},
			"README":      {Data: []byte("bad")},
			"sub/c.yaml":  {Data: []byte("bad")},
			"d.yaml":      {Mode: fs.ModeDir},
		}
		f.memory.mu.Unlock()
		f.read()
		if s := f.Status(); s.Errors.Error() != "dir/d.yaml: not a regular file" || s.Resources != 1 {
			t.Errorf("status: %+v", s)
		}
	})
}

func TestErrorToClientsNamesNoContent(t *testing.T) {
	s := newState(&contents{read: true, files: []*file{{name: "a.yaml", errs: Errors{{Err: fs.ErrInvalid}}}}}, nil)
	if s.missing == nil || s.missing.Code != codes.Unavailable || strings.Contains(s.missing.Message, fs.ErrInvalid.Error()) {
		t.Errorf("missing is %v", s.missing)
	}
}

// watcher is one who waits for an entry.
type entryWatcher struct {
	cache.Watch
	changed chan struct{}
}

func (w *entryWatcher) Changed() cache.Waker { return w }

func (w *entryWatcher) Wake() { w.changed <- struct{}{} }

// lateSink is for a sink that itself needs the source.
type lateSink struct{ *cache.Cache }

// Deliver implements delivery.Receiver.
func (s *lateSink) Deliver(e delivery.Event) { s.Apply(e.Types...) }

func TestSourceFeedsACache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &lateSink{}
		s := NewFS(fstest.MapFS{"a.yaml": {Data: []byte(cluster("foo", "1"))}}, "onprem", sink, slog.New(slog.DiscardHandler))
		defer s.Close()
		sink.Cache = cache.New(s, cache.Options{Linger: time.Minute, IdleEntries: 10})
		defer sink.Close()
		w := &entryWatcher{changed: make(chan struct{}, 10)}
		foo, _ := sink.Watch(key(scopes[1], clusterType, "foo"), w)
		<-w.changed
		if state := foo.State(); state.Status != cache.Present || state.Resource.Name() != "foo" {
			t.Errorf("state %+v", state)
		}
		sink.Unwatch(w)
		<-time.After(2 * time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.interests) > 0 {
			t.Errorf("interests after the linger time: %v", s.interests)
		}
	})
}

// What is as it was is not parsed again.
func TestUnchangedFilesAreKept(t *testing.T) {
	fsys := fstest.MapFS{"a.yaml": {Data: []byte(cluster("foo", "1"))}, "b.yaml": {Data: []byte("bad")}}
	f := folder{fsys: fsys, authority: "onprem"}
	first := f.read(&contents{})
	fsys["c.yaml"] = &fstest.MapFile{Data: []byte(cluster("bar", "1"))}
	second := f.read(first)
	if len(second.files) != 3 || first.files[0] != second.files[0] || first.files[1] != second.files[1] {
		t.Errorf("files %v and then %v", first.files, second.files)
	}
}

// blocked is a sink that takes its time.
type blocked struct{ entered, leave chan struct{} }

func (b blocked) Deliver(delivery.Event) {
	close(b.entered)
	<-b.leave
}

func TestNothingIsSentAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := blocked{make(chan struct{}), make(chan struct{})}
		s := NewFS(fstest.MapFS{}, "onprem", sink, slog.New(slog.DiscardHandler))
		s.Start(key(scopes[1], clusterType, "foo"))
		<-sink.entered
		closed := false
		go func() {
			s.Close()
			closed = true
		}()
		synctest.Wait()
		if closed {
			t.Error("closed while the sink got an update")
		}
		close(sink.leave)
		synctest.Wait()
		if !closed {
			t.Error("not closed")
		}
		s.Start(key(scopes[1], clusterType, "bar"))
		synctest.Wait() // a second Apply would panic
	})
}

// A relay ends though a file is on a disk that does not answer.
func TestCloseDoesNotWaitForADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &recorder{}
		m := &memory{files: fstest.MapFS{"a.yaml": {Data: []byte(cluster("foo", "1"))}}}
		disk := make(chan struct{})
		m.onOpen = func(string) { <-disk }
		s := NewFS(m, "onprem", sink, slog.New(slog.DiscardHandler))
		s.Start(key(scopes[0], clusterType, "foo"))
		synctest.Wait()
		begin := time.Now()
		s.Close()
		if took := time.Since(begin); took > closing {
			t.Errorf("closing took %v, want at most %v", took, closing)
		}
		close(disk)
		synctest.Wait()
		if got, _ := sink.take(); got != "" {
			t.Errorf("updates after it was closed: %s", got)
		}
	})
}

// All types of one reading are one change, in the order in which clients need them.
func TestTypesOfAReadingComeTogetherInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.start(scopes[1], xdstype.ListenerV3, "l")
		f.start(scopes[1], clusterType, "c")
		for range 10 { // a map has another order each time
			f.write(map[string]string{"a.yaml": cluster("c", rand.Text()), "b.yaml": fmt.Sprintf("'@type': %s\nname: l\nstat_prefix: %s\n", xdstype.ListenerV3, rand.Text())})
			f.sink.mu.Lock()
			var types []string
			for _, u := range f.sink.updates {
				types = append(types, u.TypeURL)
			}
			calls := f.sink.calls
			f.sink.updates, f.sink.calls = nil, 0
			f.sink.mu.Unlock()
			if calls != 1 || !slices.Equal(types, []string{clusterType, xdstype.ListenerV3}) {
				t.Fatalf("%d calls, with %v", calls, types)
			}
		}
	})
}
