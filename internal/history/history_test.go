package history

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/propagation"
)

const (
	clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	secretType  = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// world is a cache with a history.
type world struct {
	cache   *cache.Cache
	history *History
	log     *Log
	scope   cache.Scope
}

func newWorld(t testing.TB, bytes int) *world {
	t.Helper()
	w := &world{cache: cache.New(silent{}, cache.Options{}), history: New(bytes, slog.New(slog.DiscardHandler)), scope: cache.Scope{Authority: "a", OldStyle: true}}
	t.Cleanup(w.cache.Close)
	w.history.Keep(true)
	w.log = w.history.Authority("a")
	return w
}

type silent struct{}

func (silent) Start(cache.Key)   {}
func (silent) Refresh(cache.Key) {}
func (silent) Stop(cache.Key)    {}

type watcher struct{}

func (watcher) Changed() cache.Waker { return nil }

func resource(typeURL, name, content string) *cache.Resource {
	return cache.NewResource(cache.Spec{Name: name, Version: content, TypeURL: typeURL, Value: []byte("\x0a" + string(rune(len(name))) + name + "\x12" + string(rune(len(content))) + content)})
}

// set gives the wildcard of a type these members: NAME=CONTENT, or NAME= for a removal.
func (w *world) set(u cache.Update, extent cache.Extent, members ...string) {
	if u.TypeURL == "" {
		u.TypeURL = clusterType
	}
	u.Scope = w.scope
	s := cache.SetUpdate{Name: cache.Wildcard, Extent: extent}
	for _, m := range members {
		name, content, _ := strings.Cut(m, "=")
		c := cache.Change{Name: name, Gone: content == ""}
		if content != "" {
			c.Resource = resource(u.TypeURL, name, content)
		}
		s.Changes = append(s.Changes, c)
	}
	u.Sets = []cache.SetUpdate{s}
	w.apply("response", u)
}

func (w *world) apply(cause Cause, updates ...cache.Update) {
	var before []cache.Before
	for i := range updates {
		before = append(before, w.cache.Before(&updates[i], false))
	}
	w.cache.Apply(updates...)
	w.log.Record(cause, updates, before)
	w.log.KeepBack(updates)
}

func (w *world) watch(typeURL string) {
	w.cache.WatchSet(cache.Key{Scope: w.scope, TypeURL: typeURL, Name: cache.Wildcard}, new(setWatch))
}

type setWatch struct {
	cache.SetWatch
	watcher
}

// entries returns what is kept, one line for each entry.
func (w *world) entries() (lines []string) {
	for _, e := range w.history.After(0, time.Time{}, false) {
		if e.Event != nil {
			lines = append(lines, "event "+e.Event.Kind+": "+e.Event.Text)
			continue
		}
		line := fmt.Sprintf("+%d ~%d -%d first %d", e.Added, e.Changed, e.Removed, e.First)
		for _, c := range e.Changes {
			line += fmt.Sprintf(" %s:%s→%s", c.Name, c.OldVersion, c.NewVersion)
		}
		for _, k := range e.Kept {
			line += fmt.Sprintf(" %s keeps %s", k.By, k.Name)
		}
		if e.Responses > 1 {
			line += fmt.Sprintf(" in %d responses", e.Responses)
		}
		lines = append(lines, line)
	}
	return lines
}

func (w *world) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := w.entries(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the entries are\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// What a response changes is one entry, with what was there before. What does not change is none.
func TestAResponseIsOneEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, MostBytes)
		w.watch(clusterType)
		w.set(cache.Update{}, cache.Whole, "a=1", "b=1", "c=1")
		w.set(cache.Update{Receipt: &propagation.Receipt{At: time.Now(), Nonce: "n7", Version: "v2", Number: 2}, Server: "cp:1"}, cache.Some, "a=2", "b=1", "c=", "d=1")
		w.set(cache.Update{}, cache.Some, "a=2", "b=1", "x=")
		w.expect(t, "+0 ~0 -0 first 3", "+1 ~1 -1 first 0 a:1→2 c:1→ d:→1")
		e := w.history.After(1, time.Time{}, false)[0]
		if e.Server != "cp:1" || e.Receipt.Nonce != "n7" || e.Receipt.Version != "v2" || e.Receipt.Response != 2 || e.Cause != "response" {
			t.Errorf("the response is not known: %+v", e)
		}
		if c := e.Changes[0]; c.Old == nil || c.New == nil || !strings.Contains(string(c.Old.Value()), "1") || !c.Had || !c.Has {
			t.Errorf("the contents are not kept: %+v", c)
		}
	})
}

// An answer in parts is a first answer until it is complete.
func TestAFirstAnswerInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, MostBytes)
		w.watch(clusterType)
		w.set(cache.Update{}, cache.Begins, "a=1")
		time.Sleep(2 * settles)
		w.set(cache.Update{}, cache.Some, "b=1", "a=2")
		w.set(cache.Update{}, cache.Ends)
		w.set(cache.Update{}, cache.Some, "c=1")
		w.expect(t, "+0 ~0 -0 first 1", "+0 ~1 -0 first 1 a:1→2", "+1 ~0 -0 first 0 c:→1")
	})
}

// A client that makes up names gets one entry a second, and pushes out no change.
func TestFirstAnswersPushOutNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 256<<10)
		w.watch(clusterType)
		w.set(cache.Update{}, cache.Whole, "a=1")
		w.set(cache.Update{}, cache.Some, "a=2")
		for i := range 100_000 {
			name := fmt.Sprint("made-up-", i)
			k := cache.Key{Scope: w.scope, TypeURL: clusterType, Name: name}
			watch := new(entryWatch)
			w.cache.Watch(k, watch)
			w.apply("response", cache.Update{Scope: w.scope, TypeURL: clusterType, Changes: []cache.Change{{Name: name, Gone: true}}})
			w.cache.Unwatch(watch)
			if i%10 == 0 {
				time.Sleep(settles / 10)
			}
		}
		lines := w.entries()
		if got := len(lines); got > mostEntries+2 {
			t.Errorf("%d entries", got)
		}
		if !strings.Contains(strings.Join(lines, "\n"), "a:1→2") {
			t.Error("the change was pushed out")
		}
		if cost := w.history.cost.Load(); cost > 2*256<<10 {
			t.Errorf("%d bytes are kept", cost)
		}
	})
}

type entryWatch struct {
	cache.Watch
	watcher
}

// A storm is a few entries a second, each with the first old and the last new content.
func TestAStormIsMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, MostBytes)
		w.watch(clusterType)
		w.set(cache.Update{}, cache.Whole, "a=0")
		time.Sleep(2 * settles)
		for i := range 10_000 {
			w.set(cache.Update{}, cache.Some, fmt.Sprint("a=", i+1))
		}
		lines := w.entries()[1:]
		if len(lines) != apart {
			t.Fatalf("%d entries:\n%s", len(lines), strings.Join(lines, "\n"))
		}
		if want := fmt.Sprintf("+0 ~%d -0 first 0 a:%d→10000 in %d responses", 10_000-apart+1, apart-1, 10_000-apart+1); lines[apart-1] != want {
			t.Errorf("the last entry is\n%s\nwant\n%s", lines[apart-1], want)
		}
		if got := w.history.After(0, time.Time{}, true); len(got) != 1 {
			t.Errorf("%d entries are settled", len(got))
		}
		time.Sleep(settles)
		if got := w.history.After(0, time.Time{}, true); len(got) != 1+apart {
			t.Errorf("later %d entries are settled", len(got))
		}
	})
}

// An authority that changes all the time does not push out what another one has within its share, and the bytes are bounded.
func TestTheBytesAreBounded(t *testing.T) {
	const most = 1 << 20
	w := newWorld(t, most)
	quiet := *w
	quiet.scope, quiet.log = cache.Scope{Authority: "b", OldStyle: true}, w.history.Authority("b")
	synctest.Test(t, func(t *testing.T) {
		w.watch(clusterType)
		quiet.watch(clusterType)
		quiet.set(cache.Update{}, cache.Whole, "q=1")
		quiet.set(cache.Update{}, cache.Some, "q=2")
		content := strings.Repeat("x", 100)
		w.set(cache.Update{}, cache.Whole, "a=0")
		for i := range 20_000 {
			w.set(cache.Update{}, cache.Some, fmt.Sprint("a=", i, content))
			time.Sleep(settles / 8)
			if cost := w.history.cost.Load(); cost > 2*most {
				t.Fatalf("%d bytes are kept", cost)
			}
		}
	})
	lines := strings.Join(w.entries(), "\n")
	if !strings.Contains(lines, "q:1→2") {
		t.Error("the change of the quiet authority was pushed out")
	}
	if n := strings.Count(lines, "\n"); n < 500 {
		t.Errorf("only %d entries", n)
	}
	sum := int64(0)
	for _, e := range w.history.After(0, time.Time{}, false) {
		sum += int64(e.cost)
	}
	if sum != w.history.cost.Load() {
		t.Errorf("the entries cost %d, the account has %d", sum, w.history.cost.Load())
	}
}

// Of a resource with a secret, no content is kept.
func TestSecretsAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, MostBytes)
		w.watch(secretType)
		w.set(cache.Update{TypeURL: secretType}, cache.Whole, "s=old-secret")
		w.set(cache.Update{TypeURL: secretType}, cache.Some, "s=new-secret", "t=other-secret")
		all := w.history.After(1, time.Time{}, false)
		if len(all) != 1 || len(all[0].Changes) != 2 {
			t.Fatalf("entries: %v", w.entries())
		}
		for _, c := range all[0].Changes {
			if c.Old != nil || c.New != nil || !c.Secret || !c.Has {
				t.Errorf("the content is kept: %+v", c)
			}
		}
	})
}

// What the guard and a rollout keep back is an entry of its own, with the response.
func TestWhatIsKeptBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, MostBytes)
		w.watch(clusterType)
		w.set(cache.Update{}, cache.Whole, "a=1")
		r := &propagation.Receipt{Nonce: "n"}
		r.KeepBack("guard", clusterType, "b")
		r.KeepBack("rollout", clusterType, "c")
		r.KeepBack("rollout", secretType, "not-of-this-type")
		w.set(cache.Update{Receipt: r}, cache.Some, "a=2")
		w.expect(t, "+0 ~0 -0 first 1", "+0 ~1 -0 first 0 a:1→2", "+0 ~0 -0 first 0 guard keeps b rollout keeps c")
	})
}

// A reader sees entries that are being merged as they were.
func TestReadersDoNotRace(*testing.T) {
	w := newWorld(&testing.T{}, MostBytes)
	defer w.cache.Close()
	w.watch(clusterType)
	w.set(cache.Update{}, cache.Whole, "a=0")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 2000 {
			w.set(cache.Update{}, cache.Some, fmt.Sprint("a=", i+1))
		}
	}()
	for {
		w.entries()
		select {
		case <-done:
			return
		default:
		}
	}
}

// Lines with an event are kept, with the attributes of their logger, and logged as the level says.
func TestEventsAreKept(t *testing.T) {
	h := New(MostBytes, slog.New(slog.DiscardHandler))
	h.Keep(true)
	log := slog.New(h.Handler(slog.DiscardHandler))
	log.Warn("no event")
	log.WithGroup("g").Warn("in a group", EventKey, "x")
	long := strings.Repeat("x", 1<<20)
	for range 3 * mostEntries {
		log.Warn("again", EventKey, "reload", "long", long)
	}
	if n := len(h.After(0, time.Time{}, false)); n > mostEntries || n < 100 {
		t.Errorf("%d events are kept", n)
	}
	for _, e := range h.After(0, time.Time{}, false) {
		if e.Event.Kind != "reload" || len(e.Event.Attrs[0].Value) > mostText+3 {
			t.Fatalf("the event %+v", e.Event)
		}
	}
	if h.cost.Load() > 2*MostBytes {
		t.Errorf("%d bytes are kept", h.cost.Load())
	}
	h = New(MostBytes, slog.New(slog.DiscardHandler))
	h.Keep(true)
	var out bytes.Buffer
	log = slog.New(h.Handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})))
	log.With("authority", "a", "server", "cp:1").Info("switched", EventKey, "failover", "reason", "it is down")
	if out.Len() != 0 {
		t.Errorf("logged above the level: %s", out.String())
	}
	e := h.After(0, time.Time{}, false)[0].Event
	if e.Kind != "failover" || e.Authority != "a" || e.Text != "switched" || fmt.Sprint(e.Attrs) != "[{server cp:1} {reason it is down}]" {
		t.Errorf("the event is %+v", e)
	}
	h.Keep(false)
	if log.Enabled(context.Background(), slog.LevelInfo) {
		t.Error("a line is made that nobody keeps")
	}
}

// Each response that changes something is a line with its counts. In a storm there are few.
func TestResponsesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := newWorld(t, MostBytes)
		w.history.log = slog.New(slog.NewTextHandler(&out, nil))
		w.watch(clusterType)
		w.set(cache.Update{}, cache.Whole, "a=1", "b=1")
		w.set(cache.Update{Receipt: &propagation.Receipt{Nonce: "n", Version: "v"}, Server: "cp:1"}, cache.Some, "a=2", "b=", "c=1")
		w.set(cache.Update{}, cache.Some, "a=2")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "first_answers=2") {
			t.Fatalf("the lines are\n%s", out.String())
		}
		if want := "authority=a partition=\"\" type_url=" + clusterType + " added=1 changed=1 removed=1 first_answers=0 kept_back=0 cause=response server=cp:1 version=v nonce=n"; !strings.HasSuffix(lines[1], want) {
			t.Errorf("the line is\n%s\nwant\n%s", lines[1], want)
		}
		out.Reset()
		for i := range 10_000 {
			w.set(cache.Update{}, cache.Some, fmt.Sprint("a=", i))
		}
		if n := strings.Count(out.String(), "\n"); n > 100 || n == 0 {
			t.Errorf("%d lines in a storm", n)
		}
	})
}
