package feed

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
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
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// TestFailover plays testdata/failover/*.txt: the cached state of a scope while servers fail
// and come back.
//
//	servers NAME... [options as in TestMachine of failover] [shared]
//	subscribe NAME... | unsubscribe NAME...   the clients; * is the wildcard
//	prefetch NAME...                the relay, before a client does
//	NAME responds | NAME opened | NAME lost | NAME failed
//	NAME sends [KEY=VALUE... | -KEY... | !KEY...]
//	                                for names: a resource, a nonexistent one, or
//	                                an error; KEY=(VALUE,10s) has a
//	                                TTL, which the feed does not expire
//	NAME has KEY=VALUE...           the wildcard's whole set
//	NAME adds KEY=VALUE... | -KEY   to the wildcard's set
//	NAME resumes                    prints the resources from which the server's feed resumes
//	after DURATION
//
// The output has the subscriptions of each server's feed, and what the cache holds.
func TestFailover(t *testing.T) {
	datadriven.Walk(t, "testdata/failover", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			p := &groupPlayer{}
			defer p.close()
			datadriven.RunTest(t, path, p.play)
		})
	})
}

const someType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

var someScope = cache.Scope{Authority: "shop", OldStyle: true}

type groupPlayer struct {
	cache *cache.Cache
	feed  *Feed
	reach *Reachability
	names []string
	feeds map[string]*fakeFeed // by server, those that are open
	watch map[string]any
	logs  bytes.Buffer
	seed  bool

	mu  sync.Mutex
	out strings.Builder
}

func (p *groupPlayer) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(&p.out, format, args...)
}

// Write takes lines of log.
func (p *groupPlayer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logs.Write(b)
}

func (p *groupPlayer) close() {
	if p.feed != nil {
		p.feed.Close()
		p.cache.Close()
	}
}

func (p *groupPlayer) servers(t *testing.T, d *datadriven.TestData) {
	p.close()
	p.names, p.feeds, p.watch = nil, map[string]*fakeFeed{}, map[string]any{}
	for _, arg := range d.CmdArgs {
		switch {
		case arg.Key == "shared":
			p.seed = true
		case len(arg.Vals) == 0:
			p.names = append(p.names, arg.Key)
		}
	}
	source := &lateSource{}
	p.cache = cache.New(source, cache.Options{Linger: time.Nanosecond, IdleEntries: 1})
	p.reach = NewReachability()
	p.reach.Notify(func(s cache.Scope) {
		since, down := p.reach.Unreachable(s)
		if down {
			p.printf("%s is unreachable for %s\n", s, time.Since(since))
		} else {
			p.printf("%s is reachable\n", s)
		}
	})
	open := func(i int, child *Link) Source {
		f := &fakeFeed{player: p, name: p.names[i], child: child, done: make(chan struct{})}
		p.printf("open %s\n", f.name)
		p.feeds[f.name] = f
		return f
	}
	log := slog.New(slog.NewTextHandler(p, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	p.feed = New(Options{
		Cache: p.cache, Reachability: p.reach, Log: log, Guard: noGuard,
		Servers: Servers{Scope: someScope, Names: p.names, Open: open, Failover: scanOptions(t, d)},
	})
	source.Feed = p.feed
}

// lateSource is set once the cache is there.
type lateSource struct{ *Feed }

// noGuard guards nothing.
var noGuard = guard.Settings{Options: func(cache.Scope) *guard.Options { return nil }}

func scanOptions(t *testing.T, d *datadriven.TestData) failover.Options {
	o := failover.Options{Grace: 30 * time.Second, Timeout: 15 * time.Second, Hysteresis: 5 * time.Second}
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 {
			continue
		}
		span, err := time.ParseDuration(arg.Vals[0])
		switch arg.Key {
		case "policy":
			o.Unreachable, err = arg.Vals[0] == "unreachable", nil
		case "grace":
			o.Grace = span
		case "timeout":
			o.Timeout = span
		case "hysteresis":
			o.Hysteresis = span
		case "connect":
			o.ConnectTimeout = span
		}
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	return o
}

// fakeFeed prints the calls of its methods.
type fakeFeed struct {
	player *groupPlayer
	name   string
	child  *Link
	done   chan struct{}
	said   []delivery.Delivery
	starts []string
}

func (f *fakeFeed) Start(k cache.Key) {
	f.starts = append(f.starts, k.Name)
	slices.Sort(f.starts)
}
func (f *fakeFeed) Refresh(k cache.Key) { f.player.printf("%s: again %s\n", f.name, k.Name) }
func (f *fakeFeed) Adopt(k cache.Key)   { f.player.printf("%s: adopted %s\n", f.name, k.Name) }
func (f *fakeFeed) Stop(k cache.Key) {
	f.starts = slices.DeleteFunc(f.starts, func(name string) bool { return name == k.Name })
}
func (*fakeFeed) Resume(cache.Key)                 {}
func (*fakeFeed) Reject(_, _, _ string)            {}
func (*fakeFeed) PassOn(string, session.Rejection) {}
func (*fakeFeed) Statuses() []upstream.Status      { return nil }
func (f *fakeFeed) Drain()                         {}
func (f *fakeFeed) Close() {
	f.player.printf("close %s\n", f.name)
	if f.player.feeds[f.name] == f {
		delete(f.player.feeds, f.name)
	}
	close(f.done)
}
func (f *fakeFeed) Done() <-chan struct{} { return f.done }
func (f *fakeFeed) Resend() {
	f.player.printf("%s resends everything\n", f.name)
	go func() {
		for _, said := range f.said {
			said.Types = slices.Clone(said.Types)
			f.child.Deliver(delivery.Event{Delivery: said})
		}
	}()
}

func (p *groupPlayer) play(t *testing.T, d *datadriven.TestData) string {
	p.mu.Lock()
	p.out.Reset()
	p.logs.Reset()
	p.mu.Unlock()
	switch {
	case d.Cmd == "servers":
		p.servers(t, d)
		return "ok\n"
	case d.Cmd == "subscribe" || d.Cmd == "unsubscribe":
		p.want(d)
	case d.Cmd == "prefetch":
		for _, arg := range d.CmdArgs {
			p.cache.Prefetch(cache.Key{Scope: someScope, TypeURL: someType, Name: arg.Key}, &prefetchWatch{})
		}
	case d.Cmd == "after":
		span, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		time.Sleep(span)
	case slices.Contains(p.names, d.Cmd):
		p.server(t, d)
	default:
		d.Fatalf(t, "unknown")
	}
	synctest.Wait()
	p.show()
	return p.out.String()
}

type prefetchWatch struct{ cache.PrefetchWatch }

func (*prefetchWatch) Changed() cache.Waker { return nil }

func (*prefetchWatch) Adopted() {}

type nameWatch struct{ cache.Watch }

func (*nameWatch) Changed() cache.Waker { return nil }

type setWatch struct{ cache.SetWatch }

func (*setWatch) Changed() cache.Waker { return nil }

func (p *groupPlayer) want(d *datadriven.TestData) {
	for _, arg := range d.CmdArgs {
		k := cache.Key{Scope: someScope, TypeURL: someType, Name: arg.Key}
		if d.Cmd == "unsubscribe" {
			p.cache.Unwatch(p.watch[k.Name].(cache.Watcher))
			delete(p.watch, k.Name)
			continue
		}
		if k.IsSet() {
			w := &setWatch{}
			p.cache.WatchSet(k, w)
			p.watch[k.Name] = w
		} else {
			w := &nameWatch{}
			p.cache.Watch(k, w)
			p.watch[k.Name] = w
		}
	}
	if d.Cmd == "unsubscribe" {
		time.Sleep(time.Millisecond) // the linger time
	}
}

func (p *groupPlayer) server(t *testing.T, d *datadriven.TestData) {
	f := p.feeds[d.Cmd]
	if f == nil {
		d.Fatalf(t, "%s is not open", d.Cmd)
	}
	what := d.CmdArgs[0].Key
	changes := make([]cache.Change, 0, len(d.CmdArgs))
	ends := map[string]time.Time{}
	for _, arg := range d.CmdArgs[1:] {
		c := cache.Change{Name: strings.TrimLeft(arg.Key, "-!")}
		switch {
		case len(arg.Vals) > 0:
			spec := cache.Spec{Name: c.Name, Version: arg.Vals[0], TypeURL: someType, Value: []byte(arg.Vals[0])}
			if len(arg.Vals) > 1 {
				ttl, err := time.ParseDuration(arg.Vals[1])
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				spec.TTL, ends[c.Name] = ttl, time.Now().Add(ttl)
			}
			c.Resource = cache.NewResource(spec)
		case arg.Key[0] == '!':
			c.Err = &cache.Error{Code: codes.Unavailable, Message: f.name + " has no " + c.Name}
		}
		changes = append(changes, c)
	}
	u := cache.Update{Scope: someScope, TypeURL: someType}
	switch what {
	case "opened":
		f.child.Deliver(delivery.Event{Kind: delivery.Opened})
	case "responds":
		f.child.Deliver(delivery.Event{Kind: delivery.Responded})
	case "lost":
		f.child.Deliver(delivery.Event{Kind: delivery.Lost, Reason: "ended"})
	case "failed":
		f.child.Deliver(delivery.Event{Kind: delivery.Failed, Reason: "refused"})
	case "resumes":
		p.resumes(f)
	case "sends":
		u.Changes = changes
	case "has":
		u.Sets = []cache.SetUpdate{{Name: cache.Wildcard, Extent: cache.Whole, Changes: changes}}
	case "adds":
		u.Sets = []cache.SetUpdate{{Name: cache.Wildcard, Changes: changes}}
	default:
		d.Fatalf(t, "unknown")
	}
	if len(u.Changes)+len(u.Sets) > 0 {
		said := delivery.Delivery{Types: []cache.Update{u}, ExpiresAt: ends}
		f.said = append(f.said, said)
		said.Types = slices.Clone(said.Types)
		f.child.Deliver(delivery.Event{Delivery: said})
	}
}

func (p *groupPlayer) resumes(f *fakeFeed) {
	for _, name := range f.starts {
		var offered []string
		f.child.Seed(cache.Key{Scope: someScope, TypeURL: someType, Name: name}, func(key string, r *cache.Resource) {
			offered = append(offered, key+"="+r.Version())
		})
		slices.Sort(offered)
		p.printf("%s is offered %s for %s\n", f.name, strings.Join(offered, " "), name)
	}
}

// show prints what clients hold.
func (p *groupPlayer) show() {
	for line := range strings.Lines(p.logs.String()) {
		p.printf("log: %s", line)
	}
	for _, name := range p.names {
		if f := p.feeds[name]; f != nil {
			p.printf("%s\n", strings.TrimRight(name+" subscriptions: "+strings.Join(f.starts, " "), " "))
		}
	}
	var names []string
	for name := range p.watch {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		k := cache.Key{Scope: someScope, TypeURL: someType, Name: name}
		if !k.IsSet() {
			e, _ := p.cache.Find(k)
			st := e.State()
			p.printf("  %s: %s", name, st.Status)
			if st.Resource != nil {
				p.printf(" %s", st.Resource.Version())
			}
			if st.Err != nil {
				p.printf(" (%s)", st.Err.Message)
			}
			p.printf("\n")
			continue
		}
		w := &setWatch{}
		s := p.cache.WatchSet(k, w)
		status, err := s.Status()
		p.cache.Unwatch(w)
		var members []string
		p.cache.Contents(k, func(key string, r *cache.Resource) { members = append(members, key+"="+r.Version()) })
		slices.Sort(members)
		p.printf("  %s: %s %s", name, status, strings.Join(members, " "))
		if err != nil {
			p.printf(" (%s)", err.Message)
		}
		p.printf("\n")
	}
}
