package guard_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

const testType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

var testScope = cache.Scope{Authority: "cp"}

// TestTranscripts plays testdata/*.txt: a guard before a cache, of which a client watches the wildcard.
//
//	guard [off] [listeners] [ratio=F] [least=N] [when=always] [hold=D] [stored=(NAME,...)]
//	    a new relay, with what the store has; without the keys it is as by default, and for Clusters
//	first | later | silent [full] [incomplete] [complete] [version=V]
//	    an update of the source: of a first answer, of a later one, or none of these. One line per
//	    member: `c1`, `c1..c9` for several; then ttl=D, v=CONTENT, or gone, denied, failed, again if it is
//	    gone but came on this stream, or guarded if another guard has let it go. The Listener l2 has the port 2, and so has any other name with a 2, unless
//	    at=PORT
//	opened | answered | lost
//	    what becomes of the stream to the control plane
//	after DURATION
//	leave
//	    the client leaves, so that the topic ends, and comes again
//	resume
//	    what a source resumes from
//
// After each, the log is shown, the members that the client has, and how many of them the guard
// holds.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") || filepath.Dir(path) != "testdata" {
			return // what failed in a property, or is of another test
		}
		synctest.Test(t, func(t *testing.T) {
			var p *player
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				if d.Cmd != "guard" {
					return p.play(t, d)
				}
				if p != nil {
					p.end()
				}
				p = newPlayer(settings(t, d))
				return ""
			})
			p.end()
		})
	})
}

// player plays a transcript.
type player struct {
	*feed.Feed
	to     delivery.Receiver
	cache  *cache.Cache
	client *client
	set    *cache.Set
	links  feed.Links
	stats  guard.Stats
	stored []string
	log    lines
	// wildcard is what the client watches.
	wildcard cache.Key
}

// lines are what was logged since they were taken last.
type lines struct {
	mu  sync.Mutex
	out strings.Builder
}

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(b)
}

func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.out.Reset()
	return l.out.String()
}

type client struct{ cache.SetWatch }

func (*client) Changed() cache.Waker { return nil }

// source is the source of the cache's topics, as far as it matters here.
type source struct{ player *player }

func (source) Start(cache.Key)    {}
func (source) Refresh(cache.Key)  {}
func (s source) Stop(k cache.Key) { s.player.Stop(k) }

// listener is a Listener with a port.
func listener(name string, port int, ttl time.Duration) *cache.Resource {
	value, err := proto.Marshal(&listenerv3.Listener{Name: name, Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
		SocketAddress: &corev3.SocketAddress{Address: "0.0.0.0", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)}}, //nolint:gosec // a port
	}}})
	if err != nil {
		panic(err)
	}
	return cache.NewResource(cache.Spec{Name: name, Version: "1", TypeURL: xdstype.ListenerV3, TTL: ttl, Value: value})
}

// member is a member of the set, by its name and content.
func (p *player) member(name, content string, port int, ttl time.Duration) *cache.Resource {
	if p.wildcard.TypeURL == testType {
		return member(name, content, ttl)
	}
	if port == 0 {
		port = number(name)
	}
	return listener(name, port, ttl)
}

func member(name, content string, ttl time.Duration) *cache.Resource {
	return cache.NewResource(cache.Spec{
		Name: name, Version: "1", TypeURL: testType, TTL: ttl,
		Value: wire.AppendString(wire.AppendString(nil, 1, name), 2, content),
	})
}

// newPlayer returns a relay that has just been started. A guard without options is off.
func newPlayer(typeURL string, o *guard.Options, stored []string) *player {
	p := &player{stored: stored, wildcard: cache.Key{Scope: testScope, TypeURL: typeURL, Name: cache.Wildcard}}
	p.cache = cache.New(source{p}, cache.Options{IdleEntries: 1})
	left := []string{slog.TimeKey, slog.LevelKey, "authority", "partition", "type_url", "set", "server", "event"}
	log := slog.New(slog.NewTextHandler(&p.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if slices.Contains(left, a.Key) {
			return slog.Attr{}
		}
		return a
	}}))
	p.Feed = feed.New(feed.Options{Cache: p.cache, Log: log, Guard: guard.Settings{
		Options: func(cache.Scope) *guard.Options { return o },
		Stats:   func(cache.Scope) *guard.Stats { return &p.stats },
		Waits:   func(_ cache.Key, since, late time.Time) time.Time { return p.links.Waits(typeURL, since, late) },
		Stored: func(_ cache.Key, yield func(string, *cache.Resource)) {
			for _, name := range p.stored {
				yield(name, p.member(name, "", 0, 0))
			}
		},
		Log: log, Lines: &loglines.Shared{},
	}})
	p.to = p.Link()
	p.watch()
	return p
}

// Apply is a delivery of the source.
func (p *player) Apply(updates ...cache.Update) {
	p.to.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: updates}})
	p.stored = nil // there is an answer now
}

func (p *player) watch() {
	p.client = &client{}
	p.set = p.cache.WatchSet(p.wildcard, p.client)
}

func (p *player) end() {
	p.Close()
	p.cache.Close()
	if held := p.stats.Held.Load(); held != 0 {
		panic(fmt.Sprintf("%d members count as held by a guard that is closed", held))
	}
}

func (p *player) play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	switch d.Cmd {
	case "first", "later", "silent":
		p.Apply(p.updateOf(t, d))
	case "opened":
		p.links.Event(0, delivery.Event{Kind: delivery.TypeOpened, TypeURL: p.wildcard.TypeURL})
	case "answered":
		p.links.Event(0, delivery.Event{Kind: delivery.TypeAnswered, TypeURL: p.wildcard.TypeURL})
	case "lost":
		p.links.Event(0, delivery.Event{Kind: delivery.TypeLost, TypeURL: p.wildcard.TypeURL})
	case "after":
		wait, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(wait)
	case "breaks": // streams that break 1.21 s after an answer without any member
		lasts, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); time.Since(began) < lasts; {
			for _, kind := range []delivery.Kind{delivery.TypeOpened, delivery.TypeAnswered} {
				p.links.Event(0, delivery.Event{Kind: kind, TypeURL: p.wildcard.TypeURL})
			}
			p.Apply(cache.Update{Scope: p.wildcard.Scope, TypeURL: p.wildcard.TypeURL, Sets: []cache.SetUpdate{{Name: p.wildcard.Name, Answer: cache.FirstAnswer}}})
			<-time.After(1210 * time.Millisecond)
			p.links.Event(0, delivery.Event{Kind: delivery.TypeLost, TypeURL: p.wildcard.TypeURL})
		}
	case "leave":
		p.cache.Unwatch(p.client)
		<-time.After(time.Second)
		p.watch()
	case "resume":
		var names []string
		p.Contents(p.wildcard, func(name string, _ *cache.Resource) { names = append(names, name) })
		return "from " + short(names) + "\n"
	default:
		t.Fatalf("%s: what is %q?", d.Pos, d.Cmd)
	}
	synctest.Wait()
	return p.show()
}

// show shows what there is.
func (p *player) show() string {
	log := p.log.take()
	if status, _ := p.set.Status(); status != cache.Present {
		return log + "nothing\n"
	}
	var names []string
	p.cache.Contents(p.wildcard, func(name string, r *cache.Resource) {
		var l listenerv3.Listener
		if p.wildcard.TypeURL == testType {
			if content := string(r.Value()[4+len(name):]); content != "" {
				name += "=" + content
			}
		} else if err := proto.Unmarshal(r.Value(), &l); err != nil {
			name += err.Error()
		} else if port := l.GetAddress().GetSocketAddress().GetPortValue(); int(port) != number(name) {
			name += fmt.Sprintf("@%d", port)
		}
		names = append(names, name)
	})
	out := log + short(names)
	if v := p.set.Origin().String(); v != "" {
		out += ", version " + v
	}
	held := 0
	for _, h := range p.Held() {
		held += h.Members
		out += fmt.Sprintf("; %d held until %s", h.Members, time.Until(h.Until).Round(time.Second))
	}
	if n := p.stats.Held.Load(); n != int64(held) {
		out += fmt.Sprintf("; the metric says %d", n)
	}
	return out + "\n"
}

// settings are those of a guard, and what is stored.
func settings(t *testing.T, d *datadriven.TestData) (typeURL string, _ *guard.Options, stored []string) {
	t.Helper()
	typeURL = testType
	o := &guard.Options{Ratio: 0.5, Least: 10, Hold: 10 * time.Minute}
	for _, a := range d.CmdArgs {
		var err error
		switch a.Key {
		case "listeners":
			typeURL = xdstype.ListenerV3
		case "off":
			o = nil
		case "ratio":
			o.Ratio, err = strconv.ParseFloat(a.Vals[0], 64)
		case "least":
			o.Least, err = strconv.Atoi(a.Vals[0])
		case "when":
			o.Always = a.Vals[0] == "always"
		case "hold":
			o.Hold, err = time.ParseDuration(a.Vals[0])
		case "stored":
			stored = several(t, a.Vals[0])
		default:
			t.Fatalf("%s: what is %s?", d.Pos, a.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return typeURL, o, stored
}

// extentOf is what an update says of members that it does not name.
func extentOf(full, incomplete, complete bool) cache.Extent {
	switch {
	case full && incomplete:
		return cache.Begins
	case full:
		return cache.Whole
	case complete:
		return cache.Ends
	}
	return cache.Some
}

// updateOf is the update that a transcript describes.
func (p *player) updateOf(t *testing.T, d *datadriven.TestData) cache.Update {
	t.Helper()
	set := cache.SetUpdate{
		Name: cache.Wildcard, Extent: extentOf(d.HasArg("full"), d.HasArg("incomplete"), d.HasArg("complete")),
		Answer: map[string]cache.Answer{"first": cache.FirstAnswer, "later": cache.LaterAnswer, "silent": cache.NoAnswer}[d.Cmd],
	}
	if d.HasArg("of") {
		d.ScanArgs(t, "of", &set.Of)
	}
	if d.HasArg("version") {
		var v string
		d.ScanArgs(t, "version", &v)
		set.Origin = cache.NewOriginVersion(nil, v)
	}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		for _, name := range several(t, words[0]) {
			c := cache.Change{Name: name}
			content, port, ttl, is := "", 0, time.Duration(0), true
			for _, word := range words[1:] {
				key, value, _ := strings.Cut(word, "=")
				switch key {
				case "v":
					content = value
				case "at":
					port, _ = strconv.Atoi(value)
				case "ttl":
					ttl, _ = time.ParseDuration(value)
				case "gone":
					is, c.Gone = false, true
				case "again":
					is, c.Gone, c.Answer = false, true, cache.LaterAnswer
				case "guarded":
					is, c.Gone, c.Answer = false, true, cache.Guarded
				case "denied":
					is, c.Gone, c.Err = false, true, &cache.Error{Code: codes.PermissionDenied}
				case "failed":
					is, c.Err = false, &cache.Error{Code: codes.Unavailable}
				default:
					t.Fatalf("%s: what is %q?", d.Pos, word)
				}
			}
			if is {
				c.Resource = p.member(name, content, port, ttl)
			}
			set.Changes = append(set.Changes, c)
		}
	}
	return cache.Update{Scope: testScope, TypeURL: p.wildcard.TypeURL, Sets: []cache.SetUpdate{set}}
}

// several returns the names that c1..c9 stands for; and others as they are.
func several(t *testing.T, text string) (names []string) {
	t.Helper()
	from, to, ok := strings.Cut(text, "..")
	if !ok {
		return []string{text}
	}
	first, err := strconv.Atoi(from[1:])
	last, err2 := strconv.Atoi(to[1:])
	if err != nil || err2 != nil {
		t.Fatalf("what is %q?", text)
	}
	for i := first; i <= last; i++ {
		names = append(names, from[:1]+strconv.Itoa(i))
	}
	return names
}

// number is that of a name such as c1, -1 if it has none.
func number(name string) int {
	n, err := strconv.Atoi(name[1:])
	if err != nil {
		return -1
	}
	return n
}

// short is the reverse of several, and counts.
func short(names []string) string {
	slices.SortFunc(names, func(a, b string) int {
		if a[0] == b[0] && number(a) >= 0 && number(b) >= 0 {
			return number(a) - number(b)
		}
		return strings.Compare(a, b)
	})
	var out []string
	for i := 0; i < len(names); {
		j := i
		for j+1 < len(names) && number(names[j]) >= 0 && names[j+1] == names[j][:1]+strconv.Itoa(number(names[j])+1) {
			j++
		}
		if j > i+1 {
			out = append(out, names[i]+".."+names[j])
			i = j + 1
			continue
		}
		out = append(out, names[i])
		i++
	}
	if len(names) == 0 {
		return "empty"
	}
	return fmt.Sprintf("%d: %s", len(names), strings.Join(out, " "))
}
