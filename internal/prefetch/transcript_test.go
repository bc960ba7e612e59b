package prefetch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// TestTranscripts plays clients' subscriptions and a control plane's responses, and shows the prefetched topics.
// Resources are TYPE NAME [-> NAME...]: a Listener and a scoped route refer to RouteConfigurations, and a
// RouteConfiguration and an aggregate Cluster to Clusters. A Cluster without references has endpoints. The commands:
//
//	join CLIENT [class=CLASS] [denied=PREFIX] [new]  its names have the meaning that the class has: it may
//	                                       not have names with the prefix; it gets what is not accepted yet
//	leave CLIENT
//	want CLIENT TYPE NAME...               it subscribes to them
//	unwant CLIENT TYPE NAME...
//	request TYPE NAME...                   a client subscribes in the cache, of whichever listener
//	response [new]                         what a control plane sends, a resource in each line; absent TYPE NAME
//	after DURATION
//	forget                                 the cache gives up what nobody watches
//	bounds                                 three names may be prefetched in the whole relay
//	stats
//
// The output has the topics to which the relay subscribes upstream for the first time, and those that are not
// prefetched any more.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld()
		defer w.close()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return w.do(t, d) })
	})
}

var words = map[string]string{
	"listener": xdstype.ListenerV3, "route": xdstype.RouteV3, "cluster": xdstype.ClusterV3, "endpoint": xdstype.EndpointsV3, "scoped": xdstype.ScopedRouteV3,
}

// world is a cache with its source, clients, and a Prefetcher that the test runs in its own goroutine.
type world struct {
	topics     *cache.Cache
	prefetcher *Prefetcher
	now        time.Time
	clients    map[string]*Audience
	started    []cache.Key
	before     map[*node]bool // those that were ahead
}

var scope = cache.Scope{Authority: "a", OldStyle: true}

func newWorld() *world {
	w := &world{now: time.Unix(0, 0), clients: map[string]*Audience{}, before: map[*node]bool{}}
	w.topics = cache.New(w, cache.Options{Linger: time.Hour, IdleEntries: 1 << 20})
	w.prefetcher = newPrefetcher(w.topics, Settings{Lease: 10 * time.Second, Most: 1 << 20})
	return w
}

func (w *world) close() { w.topics.Close() }

// Start implements cache.Source.
func (w *world) Start(k cache.Key) { w.started = append(w.started, k) }

// Refresh implements cache.Source.
func (*world) Refresh(cache.Key) {}

// Stop implements cache.Source.
func (*world) Stop(cache.Key) {}

// testNames resolves names for a class of clients.
type testNames struct {
	denied string
	onNew  bool
}

// Key implements Names.
func (n testNames) Key(_ cache.Key, typeURL, name string) (cache.Key, bool) {
	return cache.Key{Scope: scope, TypeURL: typeURL, Name: name}, n.denied == "" || !strings.HasPrefix(name, n.denied)
}

// Side implements Names.
func (n testNames) Side(k cache.Key) cache.Key {
	k.Scope.New = n.onNew
	return k
}

type nobody struct{ cache.Watch }

// Changed implements cache.Watcher.
func (*nobody) Changed() cache.Waker { return nil }

func (w *world) do(t *testing.T, d *datadriven.TestData) string {
	arg := func(i int) string { return d.CmdArgs[i].Key }
	each := func(from int, do func(cache.Key)) {
		for _, a := range d.CmdArgs[from+1:] {
			do(cache.Key{Scope: scope, TypeURL: words[arg(from)], Name: a.Key})
		}
	}
	switch d.Cmd {
	case "join":
		n, class := testNames{onNew: d.HasArg("new")}, ""
		d.MaybeScanArgs(t, "denied", &n.denied)
		d.MaybeScanArgs(t, "class", &class)
		w.clients[arg(0)] = w.prefetcher.Join(class, func() Names { return n })
	case "leave":
		w.clients[arg(0)].Leave()
	case "want":
		each(1, w.clients[arg(0)].Want)
	case "unwant":
		each(1, w.clients[arg(0)].Unwant)
	case "request":
		each(0, func(k cache.Key) { w.topics.Watch(k, &nobody{}) })
	case "response":
		for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
			w.apply(t, line, d.HasArg("new"))
		}
	case "after":
		wait, err := time.ParseDuration(arg(0))
		if err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(wait)
	case "forget":
		w.topics.GiveUpIdle(func(cache.Scope) bool { return true })
	case "bounds":
		w.prefetcher.Configure(Settings{Lease: 10 * time.Second, Most: 3})
	case "stats":
		return w.stats()
	default:
		t.Fatalf("%s: no such command", d.Cmd)
	}
	return w.settle()
}

// apply applies one line of a response.
func (w *world) apply(t *testing.T, line string, onNew bool) {
	fields := strings.Fields(line)
	u := cache.Update{Scope: scope, TypeURL: words[fields[0]]}
	u.Scope.New = onNew
	c := cache.Change{Name: fields[1]}
	switch {
	case len(fields) == 3 && fields[2] == "absent":
	case len(fields) > 2:
		c.Resource = resource(t, fields[0], fields[1], fields[3:]...)
	default:
		c.Resource = resource(t, fields[0], fields[1])
	}
	if set := w.topics.HasScope(u.Scope) && strings.HasPrefix(fields[1], "member-"); set {
		u.Sets = []cache.SetUpdate{{Name: cache.Wildcard, Changes: []cache.Change{c}}}
	} else {
		u.Changes = []cache.Change{c}
	}
	w.topics.Apply(u)
}

// settle runs the Prefetcher until it has nothing to do, and returns what has changed.
func (w *world) settle() string {
	for w.prefetcher.step(w.now); !w.prefetcher.inbox.Empty() || len(w.prefetcher.unread) > 0; {
		w.prefetcher.step(w.now)
	}
	var out strings.Builder
	show := func(what string, keys []cache.Key) {
		slices.SortFunc(keys, func(a, b cache.Key) int {
			return cmp.Or(cmp.Compare(xdstype.Of(a.TypeURL).Order, xdstype.Of(b.TypeURL).Order), cmp.Compare(a.Name, b.Name))
		})
		const few = 8
		for i, k := range keys {
			if i == few {
				fmt.Fprintf(&out, "and %d more\n", len(keys)-few)
				break
			}
			side := ""
			if k.Scope.New {
				side = " [new]"
			}
			fmt.Fprintf(&out, "%s %s %s%s\n", what, xdstype.Word(k.TypeURL), k.Name, side)
		}
	}
	show("subscribe", w.started)
	w.started = nil
	ahead := map[*node]bool{}
	for _, a := range w.clients {
		for _, n := range a.nodes {
			if n.isAhead() {
				ahead[n] = true
			}
		}
	}
	var ended []cache.Key
	for n := range w.before {
		if n.gone {
			ended = append(ended, n.key)
		}
	}
	w.before = ahead
	show("end", ended)
	return out.String()
}

func (w *world) stats() string {
	s := w.prefetcher.Stats()
	var refused []string
	for _, bound := range refusals {
		if n := s.Refused[bound]; n > 0 {
			refused = append(refused, fmt.Sprintf(" %s=%d", bound, n))
		}
	}
	return fmt.Sprintf("ahead=%d begun=%d requested=%d released=%d refused:%s\n", s.Ahead, s.Begun, s.Requested, s.Released, strings.Join(refused, ""))
}
