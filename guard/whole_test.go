package guard_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// TestTranscriptsOfWholeResources plays testdata/whole/*.txt: a guard before a cache with resources of several types.
//
//	guard [ratio=F] [least=N] [hold=D]
//	    a new relay
//	watch TYPE NAME...
//	    a client subscribes to `*`, or to names: `c1`, `c1..c9`, or - for a resource without a name
//	leave TYPE NAME...
//	    it unsubscribes
//	first | later | silent [full]
//	    a delivery of the source. A line with a type begins an update of that type; full updates have all members of the
//	    wildcard. One line per resource: NAME [CONTENT...], or NAME gone, denied or failed. The contents are
//	        cluster:   eds=SERVICE, aggregate=(CLUSTERS), ttl=D
//	        endpoints: how many there are
//	        listener:  route=NAME
//	        route:     hosts=h1..h9, to=CLUSTER, domains=LETTER: those of other hosts with the same numbers
//	        table:     entries=n1..n9; a map, of a type that the relay does not know
//	server down | up
//	    whether the source has confirmed what it lacks
//	after DURATION
//	resume TYPE NAME
//	    what a source resumes from
//
// After each, the log is shown, what clients have of each topic, and what the guard holds.
func TestTranscriptsOfWholeResources(t *testing.T) {
	datadriven.Walk(t, "testdata/whole", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			var p *wholePlayer
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				if d.Cmd != "guard" {
					return p.play(t, d)
				}
				if p != nil {
					p.end()
				}
				_, o, _ := settings(t, d)
				p = newWholePlayer(o)
				return ""
			})
			p.end()
		})
	})
}

var wholeTypes = map[string]string{
	"cluster": xdstype.ClusterV3, "endpoints": xdstype.EndpointsV3, "listener": xdstype.ListenerV3, "route": xdstype.RouteV3,
	"table": xdstype.Prefix + "istio.networking.nds.v1.NameTable",
}

// wholePlayer plays a transcript.
type wholePlayer struct {
	*feed.Feed
	to      delivery.Receiver
	cache   *cache.Cache
	watched map[cache.Key]cache.Watching
	wait    time.Duration // of held members, for the source
	stats   guard.Stats
	log     lines
}

type nameClient struct{ cache.Watch }

func (*nameClient) Changed() cache.Waker { return nil }

// wholeSource is the source of the cache's topics.
type wholeSource struct{ player *wholePlayer }

func (wholeSource) Start(cache.Key)    {}
func (wholeSource) Refresh(cache.Key)  {}
func (s wholeSource) Stop(k cache.Key) { s.player.Stop(k) }

func newWholePlayer(o *guard.Options) *wholePlayer {
	p := &wholePlayer{watched: map[cache.Key]cache.Watching{}}
	p.cache = cache.New(wholeSource{p}, cache.Options{IdleEntries: 1000})
	left := []string{slog.TimeKey, slog.LevelKey, "authority", "partition", "set", "server", "event"}
	log := slog.New(slog.NewTextHandler(&p.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch {
		case slices.Contains(left, a.Key):
			return slog.Attr{}
		case a.Key == "type_url":
			return slog.String("type", wordOf(a.Value.String()))
		}
		return a
	}}))
	p.Feed = feed.New(feed.Options{Cache: p.cache, Log: log, Guard: guard.Settings{
		Options: func(cache.Scope) *guard.Options { return o },
		Stats:   func(cache.Scope) *guard.Stats { return &p.stats },
		Waits: func(cache.Key, time.Time, time.Time) time.Time {
			if p.wait == 0 {
				return time.Time{}
			}
			return time.Now().Add(p.wait)
		},
		Log: log, Lines: &loglines.Shared{},
	}})
	p.to = p.Link()
	return p
}

func (p *wholePlayer) end() {
	p.Close()
	p.cache.Close()
	if held := p.stats.Held.Load(); held != 0 {
		panic(fmt.Sprintf("%d members count as held by a guard that is closed", held))
	}
}

func wordOf(typeURL string) string {
	for word, url := range wholeTypes {
		if url == typeURL {
			return word
		}
	}
	return typeURL
}

func wholeKey(word, name string) cache.Key {
	return cache.Key{Scope: testScope, TypeURL: wholeTypes[word], Name: name}
}

func (p *wholePlayer) play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	switch d.Cmd {
	case "watch", "leave":
		for _, arg := range d.CmdArgs[1:] {
			for _, name := range names(t, arg.Key) {
				p.watch(wholeKey(d.CmdArgs[0].Key, name), d.Cmd == "watch")
			}
		}
	case "first", "later", "silent":
		p.to.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: p.updates(t, d)}})
	case "server":
		if p.wait = 0; d.CmdArgs[0].Key == "down" {
			p.wait = time.Second
		}
	case "after":
		wait, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(wait)
	case "resume":
		var names []string
		p.Contents(wholeKey(d.CmdArgs[0].Key, d.CmdArgs[1].Key), func(name string, _ *cache.Resource) { names = append(names, name) })
		return "from " + short(names) + "\n"
	default:
		t.Fatalf("%s: what is %q?", d.Pos, d.Cmd)
	}
	synctest.Wait()
	return p.show()
}

func (p *wholePlayer) watch(k cache.Key, comes bool) {
	if !comes {
		p.cache.Unwatch(p.watched[k])
		delete(p.watched, k)
		return
	}
	if k.IsSet() {
		c := &client{}
		p.watched[k] = c
		p.cache.WatchSet(k, c)
		return
	}
	c := &nameClient{}
	p.watched[k] = c
	p.cache.Watch(k, c)
}

// updates are the updates that a transcript describes. What is under a name that is watched comes also, or only, there.
func (p *wholePlayer) updates(t *testing.T, d *datadriven.TestData) (all []cache.Update) {
	t.Helper()
	answer := map[string]cache.Answer{"first": cache.FirstAnswer, "later": cache.LaterAnswer, "silent": cache.NoAnswer}[d.Cmd]
	word := ""
	var u *cache.Update
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		if len(words) == 1 && wholeTypes[words[0]] != "" {
			word = words[0]
			all = append(all, cache.Update{Scope: testScope, TypeURL: wholeTypes[word]})
			u = &all[len(all)-1]
			if p.watched[wholeKey(word, cache.Wildcard)] != nil {
				u.Sets = []cache.SetUpdate{{Name: cache.Wildcard, Extent: cache.WholeIf(d.HasArg("full")), Answer: answer}}
			}
			continue
		}
		for _, name := range names(t, words[0]) {
			c := changeOf(t, word, name, words[1:])
			if len(u.Sets) > 0 {
				u.Sets[0].Changes = append(u.Sets[0].Changes, c)
			}
			if c.Answer = answer; p.watched[wholeKey(word, name)] != nil {
				u.Changes = append(u.Changes, c)
			}
		}
	}
	cache.InOrder(all)
	return all
}

// names are several names, or that of a resource without one.
func names(t *testing.T, text string) []string {
	t.Helper()
	if text == "-" {
		return []string{""}
	}
	return several(t, text)
}

func changeOf(t *testing.T, word, name string, words []string) cache.Change {
	t.Helper()
	switch c := (cache.Change{Name: name}); strings.Join(words, " ") {
	case "gone":
		c.Gone = true
		return c
	case "denied":
		c.Gone, c.Err = true, &cache.Error{Code: codes.PermissionDenied}
		return c
	case "failed":
		c.Err = &cache.Error{Code: codes.Unavailable}
		return c
	}
	args := map[string]string{}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		args[key] = cmp.Or(value, key)
	}
	var ttl time.Duration
	if text := args["ttl"]; text != "" {
		var err error
		if ttl, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	if word == "table" {
		var table []byte
		for _, n := range several(t, args["entries"]) {
			table = wire.AppendBytes(table, 1, wire.AppendString(wire.AppendString(nil, 1, n), 2, "address"))
		}
		return cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{TypeURL: wholeTypes[word], Value: table})}
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(messageOf(t, word, name, words, args))
	if err != nil {
		t.Fatal(err)
	}
	return cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{Name: name, TypeURL: wholeTypes[word], Value: value, TTL: ttl})}
}

func messageOf(t *testing.T, word, name string, words []string, args map[string]string) proto.Message {
	t.Helper()
	ads := &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{}}
	inAny := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	switch word {
	case "cluster":
		return &clusterv3.Cluster{
			Name: name, AltStatName: args["v"], ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads, ServiceName: args["eds"]},
		}
	case "endpoints":
		n, err := strconv.Atoi(words[0])
		if err != nil {
			t.Fatal(err)
		}
		l := &endpointv3.LocalityLbEndpoints{}
		for range n {
			l.LbEndpoints = append(l.LbEndpoints, &endpointv3.LbEndpoint{})
		}
		return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{l}}
	case "listener":
		return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: inAny(&hcmv3.HttpConnectionManager{
			RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: ads, RouteConfigName: args["route"]}},
		})}}
	case "route":
		r := &routev3.RouteConfiguration{Name: name}
		for _, host := range several(t, args["hosts"]) {
			h := &routev3.VirtualHost{Name: host, Domains: []string{cmp.Or(args["domains"], host[:1]) + host[1:] + ".example.com"}}
			if to := args["to"]; to != "" {
				h.Routes = append(h.Routes, &routev3.Route{Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: to},
				}}})
			}
			r.VirtualHosts = append(r.VirtualHosts, h)
		}
		return r
	}
	t.Fatalf("what is %q?", word)
	return nil
}

// contentOf is what a transcript shows of a resource's content.
func contentOf(t *cache.Resource) string {
	fields := map[string]int{xdstype.EndpointsV3: 2, xdstype.RouteV3: 2, wholeTypes["table"]: 1}
	num, ok := fields[t.TypeURL()]
	if !ok {
		return ""
	}
	n := 0
	for f := wire.Walk(t.Value()); f.Next(); {
		if int(f.Num) == num {
			if n++; t.TypeURL() == xdstype.EndpointsV3 {
				n = 0
				for l := wire.Walk(f.Bytes); l.Next(); {
					n++
				}
			}
		}
	}
	return strconv.Itoa(n)
}

// show shows what there is.
func (p *wholePlayer) show() string {
	out := strings.ReplaceAll(p.log.take(), "type=", "")
	lines := map[string]map[string][]string{} // by type and kind of topic: the names, by what is there
	note := func(k cache.Key, state, name string) {
		word := wordOf(k.TypeURL)
		if k.IsSet() {
			word += " *"
		}
		if lines[word] == nil {
			lines[word] = map[string][]string{}
		}
		lines[word][state] = append(lines[word][state], name)
	}
	for k := range p.watched {
		e, _ := p.cache.Find(k)
		if e != nil && e.State().Resource == nil {
			note(k, e.State().Status.String(), cmp.Or(k.Name, "-"))
		}
		p.cache.Contents(k, func(name string, r *cache.Resource) { note(k, contentOf(r), cmp.Or(name, "-")) })
	}
	for _, word := range slices.Sorted(maps.Keys(lines)) {
		var parts []string
		for _, state := range slices.Sorted(maps.Keys(lines[word])) {
			part := short(lines[word][state])
			if state != "" {
				part += " (" + state + ")"
			}
			parts = append(parts, part)
		}
		out += word + ": " + strings.Join(parts, "; ") + "\n"
	}
	held := 0
	for _, h := range p.Held() {
		held += h.Members
		what := ""
		if h.Contents {
			what = "contents of "
		}
		out += fmt.Sprintf("held: %s%d of %s %s until %s\n", what, h.Members, wordOf(h.Key.TypeURL), cmp.Or(h.Key.Name, "names"), time.Until(h.Until).Round(time.Second))
	}
	if n := p.stats.Held.Load(); n != int64(held) {
		out += fmt.Sprintf("the metric says %d\n", n)
	}
	return out
}
