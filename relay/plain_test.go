package relay

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"pgregory.net/rapid"
)

const plainConfig = `
listeners:
  - address: 127.0.0.1:18000
authorities:
  - name: a
    servers: [{address: "a:18000", protocol: delta, backoff: {base: 50ms, max: 200ms}}]
    failover: {hysteresis: 1s}
    guard: off # it would hold what the rules remove
  - name: b
    servers: [{address: "b:18000", protocol: delta, backoff: {base: 50ms, max: 200ms}}]
    failover: {hysteresis: 1s}
    guard: off
old_style_names:
  - authority: a
views:
  - match: {type: cluster, wildcard: true}
    collections:
      - xdstp://a/envoy.config.cluster.v3.ClusterCollection/l
      - xdstp://b/envoy.config.cluster.v3.Cluster/g/*
`

const (
	plainType = crossingPrefix + "envoy.config.cluster.v3.Cluster"
	plainList = "xdstp://a/envoy.config.cluster.v3.ClusterCollection/l"
)

// plainName is a name, short in tests: a/0 is the cluster 0 of the authority a.
func plainName(short string) string {
	name, alt, hasAlt := strings.Cut(short, "#alt=")
	authority, id, _ := strings.Cut(name, "/")
	name = "xdstp://" + authority + "/envoy.config.cluster.v3.Cluster/" + id
	if hasAlt {
		name += "#alt=" + strings.NewReplacer("%", "%25", "#", "%23").Replace(plainName(alt))
	}
	return name
}

var (
	plainNames   = []string{"a/0", "a/1", "b/0", "b/1"}
	plainMembers = []string{"b/g/0", "b/g/1"}
	plainWanted  = []string{"a/0", "b/1", "a/1#alt=b/0", "b/0#alt=a/0#alt=b/1"}
	plainGlob    = []string{"b/g/*"}
)

// TestClientsSeeWhatTheRulesSay: the whole relay in process, between two control planes that change at random and are
// away at times, and clients of both forms. One requests all clusters, and gets a view of a list and a glob; one
// requests the glob; and one requests names, some of which have alternatives. When nothing changes any more and all
// control planes are there, the clients have what a plain recursion over TP1's rules gives. While a control plane is
// away, they have what it sent last, or what they had before. Unavailable resources take nothing away from clients.
func TestClientsSeeWhatTheRulesSay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const few, many = 5, 25
		steps := rapid.SliceOfN(rapid.Custom(drawPlainStep), few, many).Draw(rt, "steps")
		var wrong string
		synctest.Test(t, func(t *testing.T) { wrong = playPlain(t, steps) })
		if wrong != "" {
			rt.Error(wrong)
		}
	})
}

// drawPlainStep draws an event: `NAME = CONTENT`, `NAME -> URL`, `NAME =`, `NAME !` if it cannot be given, `list
// URL...`, `down A`, `up A`.
func drawPlainStep(rt *rapid.T) string {
	url := func() string {
		u := rapid.SampledFrom(plainNames).Draw(rt, "name")
		if rapid.IntRange(0, 2).Draw(rt, "has alt") == 0 {
			u += "#alt=" + rapid.SampledFrom(plainNames).Draw(rt, "alt")
		}
		return u
	}
	name := rapid.SampledFrom(append(plainNames, plainMembers...)).Draw(rt, "name")
	switch rapid.IntRange(0, 8).Draw(rt, "step") {
	case 0:
		return "down " + rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "authority")
	case 1:
		return "up " + rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "authority")
	case 2:
		step := "list"
		for range rapid.IntRange(0, 3).Draw(rt, "entries") {
			step += " " + url()
		}
		return step
	case 3, 4:
		return name + " -> " + url()
	case 5:
		return name + " ="
	case 6:
		return name + " !"
	}
	return name + " = " + rapid.SampledFrom([]string{"x", "y", "z"}).Draw(rt, "content")
}

// plainWorld is the state of the authorities. By name it has the content, or > and a URL; after ! if it cannot be
// given and was that before, or ? if it cannot be given and nothing was known. It also has the members of the list.
type plainWorld struct {
	planes map[string]*plainPlane
	is     map[string]map[string]string // by authority, as it is
	last   map[string]map[string]string // as its clients know it, nil if it never was there
	down   map[string]bool
}

// found is the result of a URL: nothing if it does not exist.
type found struct {
	content string
	unknown bool // it cannot be had
	down    bool // because an authority cannot be reached, of which nothing is known
	doubt   bool // it has to do with an authority that is down, or a loop
}

func (w *plainWorld) url(url string, passed string) found {
	name, alt, hasAlt := strings.Cut(url, "#alt=")
	is := w.name(name, passed)
	if !hasAlt || !is.down {
		return is
	}
	other := w.url(alt, passed)
	other.doubt = true
	if other.content == "" {
		other.unknown, other.down = true, true
	}
	return other
}

func (w *plainWorld) name(name string, passed string) found {
	said := w.last[name[:1]]
	switch {
	case said == nil:
		return found{unknown: true, down: true, doubt: true}
	case strings.Contains(passed, name+";"):
		return found{unknown: true, doubt: true} // a loop
	}
	what, fails := strings.CutPrefix(said[name], "!")
	is := found{content: what}
	if to, redirects := strings.CutPrefix(what, ">"); redirects {
		is = w.url(to, passed+name+";")
	}
	is.doubt = is.doubt || fails || w.down[name[:1]]
	// Clients that know what it was keep that.
	is.unknown = is.unknown || fails && is.content != ""
	return is
}

// wants is what a client should have.
func (w *plainWorld) wants(c *plainClient) (want map[string]found, doubt bool) {
	want = map[string]found{}
	switch {
	case c.byName():
		for _, short := range plainWanted {
			want[plainName(short)] = w.url(short, "")
		}
		return want, false
	case c.names != nil:
		for _, name := range plainMembers {
			want[plainName(name)] = w.url(name, "")
		}
		return want, w.down["b"]
	}
	for _, url := range strings.Fields(w.last["a"]["list"]) {
		name, _, _ := strings.Cut(url, "#")
		if old, ok := want[plainName(name)]; !ok || old.content == "" {
			is := w.url(url, "")
			is.doubt = is.doubt || old.doubt
			want[plainName(name)] = is
		}
	}
	for _, name := range plainMembers {
		want[plainName(name)] = w.url(name, "")
	}
	return want, w.down["a"] || w.down["b"]
}

// check compares what a client has with what it should have.
func (w *plainWorld) check(c *plainClient) (wrong string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	want, doubt := w.wants(c)
	has := maps.Clone(c.has)
	for name, is := range want {
		if has[name] != is.content && !(is.doubt && (has[name] == c.had[name] || is.unknown)) {
			wrong += fmt.Sprintf("%s has %q of %s, want %+v; ", c.what, has[name], name, is)
		}
		if c.had[name] != "" && has[name] == "" && is.unknown {
			wrong += fmt.Sprintf("%s has lost %s; ", c.what, name)
		}
		delete(has, name)
	}
	if len(has) > 0 && !doubt {
		wrong += fmt.Sprintf("%s has %v too", c.what, has)
	}
	c.had = maps.Clone(c.has)
	return wrong + c.wrong
}

func playPlain(t *testing.T, steps []string) (wrong string) {
	w := &plainWorld{planes: map[string]*plainPlane{}, is: map[string]map[string]string{}, last: map[string]map[string]string{}, down: map[string]bool{}}
	for _, a := range []string{"a", "b"} {
		w.planes[a], w.is[a], w.down[a] = newPlainPlane(), map[string]string{}, true
	}
	w.do(t, "list a/0 b/0")
	serving := startInMemory(t, plainConfig, func(authority string) dialer { return w.planes[authority].dial })
	ctx, cancel := context.WithCancel(t.Context())
	var clients []*plainClient
	var running sync.WaitGroup
	defer func() {
		cancel()
		running.Wait()
		serving.close()
		for _, p := range w.planes {
			p.down()
		}
	}()
	for _, form := range []string{"delta", "sotw"} {
		for _, names := range [][]string{nil, plainWanted, plainGlob} {
			c := &plainClient{what: fmt.Sprintf("the %s client of %v", form, names), has: map[string]string{}, had: map[string]string{}}
			for _, short := range names {
				c.names = append(c.names, plainName(short))
			}
			clients = append(clients, c)
			conn, _ := serving.dial(t)
			running.Go(func() {
				_ = c.run(ctx, conn, form) // it ends with the test
				_ = conn.Close()
			})
		}
	}
	for i, step := range append(steps, "up a", "up b") {
		w.do(t, step)
		time.Sleep(15 * time.Second) // for connections to come about, and alternatives to end
		synctest.Wait()
		for _, c := range clients {
			if wrong := w.check(c); wrong != "" {
				return fmt.Sprintf("after %s: %s", strings.Join(append(steps, "up a", "up b")[:i+1], "\n"), wrong)
			}
		}
	}
	return ""
}

// do performs a step.
func (w *plainWorld) do(t *testing.T, step string) {
	what, rest, _ := strings.Cut(step, " ")
	switch what {
	case "down":
		w.planes[rest].down()
		w.down[rest] = true
	case "up":
		if w.down[rest] {
			w.planes[rest].up()
			w.down[rest] = false
		}
	case "list":
		list := &listenerv3.ListenerCollection{} // encoded as one of clusters
		for _, url := range strings.Fields(rest) {
			list.Entries = append(list.Entries, &xdscorev3.CollectionEntry{
				ResourceSpecifier: &xdscorev3.CollectionEntry_Locator{Locator: plainLocator(url)},
			})
		}
		w.is["a"]["list"] = rest
		w.planes["a"].say(plainList, plainAny(t, plainType+"Collection", list), false)
	default:
		op, value, _ := strings.Cut(rest, " ")
		var says *anypb.Any
		switch {
		case op == "->":
			says = plainAny(t, "", plainLocator(value))
			value = ">" + value
		case op == "!":
			value = "!?"
			if last := w.last[what[:1]]; last != nil {
				value = "!" + strings.TrimPrefix(last[what], "!")
			}
		case value != "":
			says = scriptedResource(t, "CDS", []string{plainName(what) + "@1=" + value}).GetResource()
		}
		w.is[what[:1]][what] = value
		w.planes[what[:1]].say(plainName(what), says, op == "!")
	}
	for a, down := range w.down {
		if !down {
			w.last[a] = maps.Clone(w.is[a])
		}
	}
}

func plainLocator(url string) *xdscorev3.ResourceLocator {
	url, alt, hasAlt := strings.Cut(url, "#alt=")
	authority, id, _ := strings.Cut(url, "/")
	l := &xdscorev3.ResourceLocator{Scheme: xdscorev3.ResourceLocator_XDSTP, Authority: authority, ResourceType: "envoy.config.cluster.v3.Cluster", Id: id}
	if hasAlt {
		l.Directives = []*xdscorev3.ResourceLocator_Directive{{Directive: &xdscorev3.ResourceLocator_Directive_Alt{Alt: plainLocator(alt)}}}
	}
	return l
}

func plainAny(t *testing.T, typeURL string, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	if typeURL != "" {
		a.TypeUrl = typeURL
	}
	return a
}
