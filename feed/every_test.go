package feed

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/history"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/rollout"
	"github.com/xds-relay/xds-relay/rollout/gate"
	"github.com/xds-relay/xds-relay/store"
)

// TestEveryStage plays testdata/every/*.txt: a feed with two servers, a guard, a rollout and a store.
//
//	feed [slow]           a new relay, with the store of the one before; slow: the disk needs 10 s for each read
//	subscribe NAME...     clients watch `*`, or names, of Clusters and Listeners
//	tables NAME...        the same of tables: the VERSION of such a resource is how many entries it has
//	SERVER opened | responded | lost | failed
//	SERVER first | later [whole | begins | ends] [TYPE]
//	                      a delivery for the wildcard, and for the names that clients watch; one line per resource:
//	                      NAME VERSION, NAME gone, or NAME failed. A line `TYPE` begins another type of the same delivery
//	client joins | acks | rejects
//	after DURATION
//	changes               what the history has kept since the last `changes`
//
// The output has the log, which types are stored as one, and what clients have: of the accepted state, and of the new one where it differs.
func TestEveryStage(t *testing.T) {
	datadriven.Walk(t, "testdata/every", func(t *testing.T, path string) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			p := &everyPlayer{t: t, path: filepath.Join(dir, "db")}
			datadriven.RunTest(t, path, p.play)
			p.close()
		})
	})
}

var everyTypes = map[string]string{
	"cluster":  "type.googleapis.com/envoy.config.cluster.v3.Cluster",
	"listener": "type.googleapis.com/envoy.config.listener.v3.Listener",
}

// tableType is a type that the relay does not know.
const tableType = "type.googleapis.com/example.Table"

func every(typ, name string) cache.Key {
	return cache.Key{Scope: someScope, TypeURL: everyTypes[typ], Name: name}
}

// everyPlayer plays a transcript.
type everyPlayer struct {
	t     *testing.T
	path  string
	world *everyWorld
	slow  time.Duration

	mu   sync.Mutex
	logs bytes.Buffer
}

// everyWorld is a relay.
type everyWorld struct {
	*Feed
	cache    *cache.Cache
	store    *store.Store
	gates    *gate.Controller
	linking  sync.Mutex
	links    map[string]*Link // guarded by linking
	stats    guard.Stats
	history  *history.History
	shown    uint64 // the newest entry that was shown
	watched  map[cache.Key]cache.Watching
	member   *gate.Member
	versions map[string]*cache.OriginVersion
}

// Write takes lines of log.
func (p *everyPlayer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logs.Write(b)
}

func (p *everyPlayer) close() {
	w := p.world
	if w == nil {
		return
	}
	w.cache.Close()
	w.Feed.Close()
	w.gates.Closed(someScope)
	w.gates.Close()
	closeStore(p.t, w.store)
	p.world = nil
}

// toldCache says which types are stored as one.
type toldCache struct {
	*cache.Cache
	to *everyPlayer
}

func (c toldCache) Apply(updates ...cache.Update) {
	if len(updates) > 1 {
		var types []string
		for i := range updates {
			types = append(types, typeWord(updates[i].TypeURL))
		}
		fmt.Fprintf(c.to, "stored as one: %s\n", strings.Join(types, ", "))
	}
	c.Cache.Apply(updates...)
}

func typeWord(typeURL string) string {
	return strings.ToLower(typeURL[strings.LastIndexByte(typeURL, '.')+1:])
}

// everySource is the source of the cache: the feed, and the gates for the new side.
type everySource struct{ world *everyWorld }

func (s everySource) Start(k cache.Key) {
	if k.Scope.New {
		s.world.gates.Start(k)
		return
	}
	s.world.Start(k)
}

func (s everySource) Refresh(k cache.Key) { s.world.Refresh(k) }

func (s everySource) Stop(k cache.Key) {
	if k.Scope.New {
		s.world.gates.Stop(k)
		return
	}
	s.world.Stop(k)
	s.world.gates.AcceptedStopped(k)
}

func newEveryWorld(t *testing.T, path string, log *slog.Logger, slow time.Duration, over func(Cache) Cache) *everyWorld {
	t.Helper()
	w := &everyWorld{links: map[string]*Link{}, watched: map[cache.Key]cache.Watching{}, versions: map[string]*cache.OriginVersion{}}
	w.cache = cache.New(everySource{w}, cache.Options{Linger: time.Hour, IdleEntries: 100})
	w.store = openStore(t, path, w.cache)
	settings := &gate.Options{
		Options:  rollout.Options{First: 1, Steps: []float64{1}, Soak: rollout.Time(time.Minute), Rejections: 1, Deaths: 1},
		RollsOut: func(string) bool { return true }, Grow: 1000,
	}
	w.gates = gate.NewController(w.cache, func(cache.Scope) *gate.Options { return settings }, func(a string) string { return a }, log)
	w.gates.Opened(someScope, settings)
	names := []string{"a", "b"}
	guarded := &guard.Options{Ratio: 0.5, Least: 2, Hold: time.Minute}
	var c Cache = w.cache
	if over != nil {
		c = over(c)
	}
	w.history = history.New(history.MostBytes, slog.New(slog.DiscardHandler))
	w.history.Keep(true)
	w.Feed = New(Options{
		Cache: c, History: w.history.Authority(someScope.Authority), Reachability: NewReachability(), Log: log, Rollouts: w.gates, Rollout: settings, Store: w.store,
		StoreWaits: store.KeeperOptions{Started: time.Now(), Wait: func() time.Duration { return 5 * time.Second }},
		Guard: guard.Settings{
			Options: func(cache.Scope) *guard.Options { return guarded },
			Stats:   func(cache.Scope) *guard.Stats { return &w.stats }, Log: log, Lines: &loglines.Shared{},
		},
		Servers: Servers{
			Scope: someScope, Names: names, Failover: failover.Options{Timeout: 15 * time.Second, Hysteresis: 5 * time.Second},
			Open: func(i int, to *Link) Source {
				w.linking.Lock()
				defer w.linking.Unlock()
				w.links[names[i]] = to
				return quietFeed{done: make(chan struct{})}
			},
		},
	})
	if slow > 0 {
		look := w.look
		w.look = func(k cache.Key) store.Stored {
			<-time.After(slow)
			return look(k)
		}
	}
	return w
}

func (p *everyPlayer) play(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd == "feed" {
		p.close()
		if p.slow = 0; d.HasArg("slow") {
			p.slow = 10 * time.Second
		}
		left := []string{slog.TimeKey, slog.LevelKey, "authority", "partition", "type_url", "set", "clients", "event"}
		log := slog.New(slog.NewTextHandler(p, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if slices.Contains(left, a.Key) {
				return slog.Attr{}
			}
			return a
		}}))
		p.world = newEveryWorld(t, p.path, log, p.slow, func(c Cache) Cache { return toldCache{c.(*cache.Cache), p} })
		return p.show()
	}
	w := p.world
	switch d.Cmd {
	case "subscribe":
		for _, arg := range d.CmdArgs {
			for typ := range everyTypes {
				w.watch(every(typ, arg.Key))
			}
		}
	case "tables":
		for _, arg := range d.CmdArgs {
			w.watch(cache.Key{Scope: someScope, TypeURL: tableType, Name: arg.Key})
		}
	case "client":
		w.client(t, d)
	case "changes":
		return w.changes()
	case "after":
		span, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		<-time.After(span)
	default:
		began := time.Now()
		w.says(t, d)
		if took := time.Since(began); took > 0 {
			fmt.Fprintf(p, "the stream waited %s\n", took)
		}
	}
	synctest.Wait()
	return p.show()
}

// link returns the newest link of a server, nil if it was never open.
func (w *everyWorld) link(server string) *Link {
	w.linking.Lock()
	defer w.linking.Unlock()
	return w.links[server]
}

func (w *everyWorld) watch(k cache.Key) {
	if w.watched[k] != nil {
		return
	}
	if k.IsSet() {
		v := &setWatch{}
		w.watched[k] = v
		w.cache.WatchSet(k, v)
		return
	}
	v := &nameWatch{}
	w.watched[k] = v
	w.cache.Watch(k, v)
}

// changes returns what the history has kept since the last time.
func (w *everyWorld) changes() string {
	var b strings.Builder
	for _, e := range w.history.After(w.shown, time.Time{}, false) {
		w.shown = e.Number
		fmt.Fprintf(&b, "%s from %s (%s):", typeWord(e.TypeURL), cmp.Or(e.Server, "nobody"), cmp.Or(e.Cause, "kept back"))
		if e.First > 0 {
			fmt.Fprintf(&b, " %d first answers", e.First)
		}
		byName := func(a, b history.Change) int { return strings.Compare(a.Name, b.Name) } // a rollout accepts in any order
		for _, c := range slices.SortedFunc(slices.Values(e.Changes), byName) {
			fmt.Fprintf(&b, " %s %s→%s", c.Name, cmp.Or(c.OldVersion, "none"), cmp.Or(c.NewVersion, "none"))
		}
		for _, k := range e.Kept {
			fmt.Fprintf(&b, " %s keeps %s", k.By, k.Name)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// client is the client that is shown the new state first.
func (w *everyWorld) client(t *testing.T, d *datadriven.TestData) {
	switch d.CmdArgs[0].Key {
	case "joins":
		w.member, _ = w.gates.Join(someScope, gate.Client{
			Node: "client", Cohort: "all", Who: "client", Eligible: true, Wake: func() {}, CohortNow: func(cache.Scope) string { return "all" },
		})
		w.member.Settled()
	case "acks":
		w.member.Sent(w.member.Showing())
		w.member.Acked(w.member.Showing())
	case "rejects":
		w.member.Sent(w.member.Showing())
		w.member.Rejected(w.member.Showing(), "no", chain.Rejecters{}, nil)
	default:
		d.Fatalf(t, "what is %s?", d.CmdArgs[0].Key)
	}
}

// says is what a server says.
func (w *everyWorld) says(t *testing.T, d *datadriven.TestData) {
	link := w.link(d.Cmd)
	if link == nil {
		d.Fatalf(t, "%s was never open", d.Cmd)
	}
	var kinds = map[string]delivery.Kind{"opened": delivery.Opened, "responded": delivery.Responded, "lost": delivery.Lost, "failed": delivery.Failed}
	what := d.CmdArgs[0].Key
	if kind, ok := kinds[what]; ok {
		link.Deliver(delivery.Event{Kind: kind, Reason: "no reason"})
		return
	}
	answer, extent, typ := cache.LaterAnswer, cache.Some, "cluster"
	if what == "first" {
		answer = cache.FirstAnswer
	}
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "whole":
			extent = cache.Whole
		case "begins":
			extent = cache.Begins
		case "ends":
			extent = cache.Ends
		default:
			typ = arg.Key
		}
	}
	var types []cache.Update
	begin := func(typ string) {
		u := cache.Update{Scope: someScope, TypeURL: cmp.Or(everyTypes[typ], tableType), Server: d.Cmd, Receipt: &propagation.Receipt{At: time.Now(), Server: d.Cmd}}
		u.Sets = []cache.SetUpdate{{Name: cache.Wildcard, Extent: extent, Answer: answer}}
		types = append(types, u)
	}
	begin(typ)
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		if len(words) == 1 {
			begin(words[0])
			continue
		}
		u := &types[len(types)-1]
		c := cache.Change{Name: words[0], Answer: answer}
		switch words[1] {
		case "gone":
			c.Gone = true
		case "failed":
			c.Err = &cache.Error{Code: codes.Unavailable, Message: "away", Outage: new(cache.Outage)}
		default:
			value := fmt.Appendf(nil, "\x0a%c%s\x12%c%s", len(words[0]), words[0], len(words[1]), words[1])
			if n, err := strconv.Atoi(words[1]); err == nil && u.TypeURL == tableType {
				value = slices.Concat(value[:2+len(words[0])], bytes.Repeat([]byte("\x12\x05entry"), n))
			}
			c.Resource = cache.NewResource(cache.Spec{Name: words[0], Version: words[1], TypeURL: u.TypeURL, Value: value})
		}
		if w.watched[cache.Key{Scope: someScope, TypeURL: u.TypeURL, Name: words[0]}] != nil {
			u.Changes = append(u.Changes, c)
		}
		c.Answer = cache.NoAnswer
		u.Sets[0].Changes = append(u.Sets[0].Changes, c)
	}
	cache.InOrder(types)
	link.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: types}})
}

// content is what clients have of a set, or under a name, by the names.
func (w *everyWorld) content(k cache.Key) map[string]string {
	all := map[string]string{}
	e, s := w.cache.Find(k)
	switch {
	case e != nil:
		st := e.State()
		all[k.Name] = st.Status.String()
		if st.Resource != nil {
			all[k.Name] = st.Resource.Version()
		}
		if st.Stale {
			all[k.Name] += " stale"
		}
	case s != nil:
		status, _ := s.Status()
		if status != cache.Present {
			return map[string]string{"*": status.String()}
		}
		if s.Stale() {
			all["*"] = "stale"
		}
		w.cache.Contents(k, func(key string, r *cache.Resource) { all[key] = r.Version() })
	}
	return all
}

func printed(all map[string]string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		words = append(words, name+" "+all[name])
	}
	return strings.Join(words, ", ")
}

func (p *everyPlayer) show() string {
	var out strings.Builder
	p.mu.Lock()
	for line := range strings.Lines(p.logs.String()) {
		out.WriteString(line)
	}
	p.logs.Reset()
	p.mu.Unlock()
	w := p.world
	keys := slices.SortedFunc(maps.Keys(w.watched), func(a, b cache.Key) int {
		return strings.Compare(a.TypeURL+" "+a.Name, b.TypeURL+" "+b.Name)
	})
	for _, k := range keys {
		if k.Scope.New {
			continue
		}
		typ := typeWord(k.TypeURL)
		fmt.Fprintf(&out, "%s %s: %s\n", typ, k.Name, printed(w.content(k)))
		k.Scope.New = true
		if w.member != nil && w.member.Showing() != 0 {
			w.watch(k)
			synctest.Wait()
			fmt.Fprintf(&out, "%s %s, new: %s\n", typ, k.Name, printed(w.content(k)))
		}
	}
	for _, h := range w.Held() {
		fmt.Fprintf(&out, "%d held until %s\n", h.Members, time.Until(h.Until).Round(time.Second))
	}
	if n := w.Stale(); n > 0 {
		fmt.Fprintf(&out, "%d topics from the store\n", n)
	}
	return out.String()
}
