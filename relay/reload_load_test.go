package relay

// Reloads under load: random configurations, valid and not, while clients of both forms have streams.

import (
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/configs"
)

var (
	loadStreams = flag.Int("reload.streams", 50, "the streams of TestReloadsUnderLoad")
	loadReloads = flag.Int("reload.reloads", 6, "its reloads")
	loadSeed    = flag.Uint64("reload.seed", 1, "what its configurations are drawn from; 0 is another one each time")
)

const (
	globOfB  = "xdstp://b/envoy.config.cluster.v3.Cluster/g/*"
	namedOfA = "xdstp://a/envoy.config.cluster.v3.Cluster/x"
	namedOfB = "xdstp://b/envoy.config.cluster.v3.Cluster/x"
)

// loadConfig is a random configuration.
type loadConfig struct {
	plane     map[string]int // the control plane of each authority
	second    bool           // the second listener
	ruleOfC1  string         // the authority of old-style names of cluster c1: a or b
	partition string         // that of both rules
	view      bool           // clients of cluster c1 have a view in place of the wildcard
	denied    string         // a right denies it: "", "b", or the old-style name "m2"
	other     int            // settings that clients do not notice
}

func (w *loadWorld) draw() *loadConfig {
	r := w.rand
	c := &loadConfig{plane: map[string]int{"a": r.IntN(3)}, second: r.IntN(3) > 0, ruleOfC1: "a", other: r.IntN(1000)}
	if r.IntN(4) > 0 {
		c.plane["b"] = r.IntN(3)
		c.ruleOfC1 = []string{"a", "b"}[r.IntN(2)]
		c.view = r.IntN(3) == 0
	}
	c.partition = []string{`"one"`, "node.cluster", "node.id"}[r.IntN(3)]
	if r.IntN(3) == 0 {
		c.denied = []string{"b", "m2"}[r.IntN(2)]
	}
	return c
}

// text returns the configuration as YAML.
func (w *loadWorld) text(c *loadConfig, first, second string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listeners:\n- {address: %q, limits: {streams: %d}, keepalive: {time: %dm}}\n", first, 10_000+c.other%3, 2+c.other%2)
	if c.second {
		fmt.Fprintf(&b, "- {address: %q}\n", second)
	}
	b.WriteString("drain: {time: 0s}\nauthorities:\n")
	for _, name := range slices.Sorted(maps.Keys(c.plane)) {
		fmt.Fprintf(&b, "- {name: %s, guard: {hold: %dm}, failover: {grace: %ds}, servers: [{address: %q}]}\n", name, 10+c.other%2, 30+c.other%3, w.planes[c.plane[name]].address)
	}
	fmt.Fprintf(&b, "old_style_names:\n- {when: 'node.cluster == \"c1\"', authority: %s, partition: '%s'}\n- {authority: a, partition: '%s'}\n", c.ruleOfC1, c.partition, c.partition)
	if c.view {
		fmt.Fprintf(&b, "views:\n- {match: {type: cluster, wildcard: true}, when: 'node.cluster == \"c1\"', collections: [%q]}\n", globOfB)
	}
	switch c.denied {
	case "b":
		b.WriteString("rights:\n- {when: 'authority == \"b\" && name.startsWith(\"xdstp:\")', allow: 'false'}\n- {allow: 'true'}\n")
	case "m2":
		b.WriteString("rights:\n- {when: 'name == \"m2\"', allow: 'false'}\n- {allow: 'true'}\n")
	}
	fmt.Fprintf(&b, "cache: {linger: %ds, idle_entries: %d}\nnode: {id: relay-%d}\n", c.other%2*60, 100+c.other%5, c.other%4/3)
	return b.String()
}

// spoil returns a configuration that cannot be loaded.
func (w *loadWorld) spoil(text string) string {
	switch w.rand.IntN(3) {
	case 0:
		return text + "unknown: key\n"
	case 1:
		return strings.Replace(text, "- {address:", fmt.Sprintf("- {address: %q}\n- {address:", w.planes[0].address), 1) // it is taken
	default:
		return text + "store: {path: /nowhere/at/all/store.db}\n"
	}
}

// loadClient is a client with a stream.
type loadClient struct {
	*holder
	sotw    bool
	cluster string // of its Node
	node    *corev3.Node
	names   []string
	conn    *grpc.ClientConn
	second  bool            // it is on the second listener
	seen    int             // of the removals
	denied  map[string]bool // what it was denied since it was last given it, and so may have dropped
}

// expects returns what the client has by a configuration. keeps reports whether the client may keep a name that is
// not in it: it was denied or refused, which takes nothing away.
func (w *loadWorld) expects(c *loadConfig, l *loadClient) (has map[string]string, keeps func(name string) bool) {
	has = map[string]string{}
	ruled := "a"
	if l.cluster == "c1" {
		ruled = c.ruleOfC1
	}
	plane := w.planes[c.plane[ruled]]
	kept := map[string]bool{}
	if len(l.names) == 0 && l.cluster == "c1" && c.view {
		of := w.planes[c.plane["b"]]
		for _, name := range of.glob(globOfB) {
			has[name] = of.label
		}
		return has, func(string) bool { return false }
	}
	if len(l.names) == 0 {
		for _, name := range plane.members {
			has[name] = plane.label
		}
	}
	for _, name := range l.names {
		of, known := plane, true
		authority := ""
		if strings.HasPrefix(name, "xdstp://") {
			authority = name[len("xdstp://"):][:1]
			i, ok := c.plane[authority]
			if known = ok; ok {
				of = w.planes[i]
			}
		}
		switch {
		case !known, c.denied == name, c.denied == "b" && authority == "b":
			kept[name] = true
		case authority != "" || of.has(name):
			has[name] = of.label
		}
	}
	return has, func(name string) bool { return kept[name] }
}

// is reports whether a client has what it is to have. The caller holds its lock.
func (l *loadClient) is(has map[string]string, keeps func(string) bool) bool {
	for name, label := range has {
		if l.has[name] != label {
			return false
		}
	}
	for name := range l.has {
		if _, wanted := has[name]; !wanted && !keeps(name) {
			return false
		}
	}
	return true
}

type loadWorld struct {
	*testing.T
	rand          *rand.Rand
	planes        []*labelledPlane
	first, second string
	relay         *Relay
	now           *loadConfig
	clients       []*loadClient
	steps         []string
}

func (w *loadWorld) open(l *loadClient, conn *grpc.ClientConn) {
	l.holder, l.seen, l.denied = hold(w.T, conn, l.sotw, l.node, l.names...), 0, map[string]bool{}
}

func (w *loadWorld) fail(l *loadClient, format string, args ...any) {
	w.Helper()
	has, errs, removed, ended := l.state()
	w.Fatalf("%s\nclient %s of cluster %s, SotW %t, names %v, on the second listener %t, has %v, errors %v, was sent the removal of %v, ended: %v\n%s",
		fmt.Sprintf(format, args...), l.node.GetId(), l.cluster, l.sotw, l.names, l.second, has, errs, removed, ended, strings.Join(w.steps, "\n---\n"))
}

// reload loads configurations one after another, and checks what clients have after the last. The first ones may be
// loaded before clients have noticed earlier ones.
func (w *loadWorld) reload(to []*loadConfig) {
	passed := append([]*loadConfig{w.now}, to...)
	for _, c := range to {
		text := w.text(c, w.first, w.second)
		if w.rand.IntN(3) == 0 {
			bad := w.spoil(text)
			w.steps = append(w.steps, "refused: "+bad)
			cfg, err := configs.Parse("relay.yaml", []byte(bad))
			if err == nil {
				err = w.relay.Reload(w.Context(), cfg)
			}
			if err == nil {
				w.Fatalf("this was loaded:\n%s", bad)
			}
		}
		w.steps = append(w.steps, text)
		cfg, err := configs.Parse("relay.yaml", []byte(text))
		if err == nil {
			err = w.relay.Reload(w.Context(), cfg)
		}
		if err != nil {
			w.Fatalf("%v\n%s", err, text)
		}
	}
	last := to[len(to)-1]
	goneOnce := slices.ContainsFunc(to, func(c *loadConfig) bool { return !c.second })
	for _, l := range w.clients {
		w.check(l, last, passed, goneOnce)
	}
	w.now = last
}

func (w *loadWorld) check(l *loadClient, now *loadConfig, passed []*loadConfig, goneOnce bool) {
	w.Helper()
	if l.second && (goneOnce || !w.now.second) {
		if w.now.second && !l.reaches(w.Context(), func() bool { return l.ended != nil }) {
			w.fail(l, "its listener is gone, and the stream has not ended")
		}
		if !now.second {
			return
		}
		l.conn = connectTo(w.T, w.second)
		w.open(l, l.conn)
	}
	has, keeps := w.expects(now, l)
	if !l.reaches(w.Context(), func() bool { return l.ended != nil || l.is(has, keeps) }) {
		w.fail(l, "want %v", has)
	}
	_, _, removed, ended := l.state()
	if ended != nil && len(has) == 0 && status.Code(ended) == codes.PermissionDenied {
		w.open(l, l.conn) // it may have nothing, and was sent that
		return
	}
	if ended != nil {
		w.fail(l, "the stream has ended, and its listener is there")
	}
	for _, c := range passed {
		for _, name := range l.names {
			if c.denied == name || c.denied == "b" && name == namedOfB {
				l.denied[name] = true
			}
		}
	}
	for i, name := range removed[l.seen:] {
		// If the client has a name again by the newest configuration, it need not have received it after it was
		// denied it: it may have kept its version, with the same label, while the relay has not checked again yet.
		always := !l.denied[name] && !l.isExcused(l.seen+i) && !slices.ContainsFunc(passed, func(c *loadConfig) bool {
			has, keeps := w.expects(c, l)
			_, there := has[name]
			// A SotW response of clusters has all that there is: there an error takes the resource away.
			return !there && (l.sotw || !keeps(name))
		})
		if always {
			w.fail(l, "%s was removed, and is there", name)
		}
	}
	l.seen = len(removed)
	for name := range has {
		delete(l.denied, name)
	}
}

// compareWithFresh compares what clients expect with what a fresh relay gives them.
func (w *loadWorld) compareWithFresh() {
	_, address := runRelay(w.T, w.text(w.now, "127.0.0.1:0", "127.0.0.1:0"), slog.New(slog.DiscardHandler))
	conn := connectTo(w.T, address)
	for _, l := range w.clients[:min(len(w.clients), 20)] {
		fresh := &loadClient{sotw: l.sotw, cluster: l.cluster, node: l.node, names: l.names}
		w.open(fresh, conn)
		has, keeps := w.expects(w.now, fresh)
		if !fresh.reaches(w.Context(), func() bool { return fresh.is(has, keeps) }) {
			w.fail(fresh, "of a fresh relay: want %v", has)
		}
		fresh.end()
	}
}

// After a reload, each client has what a fresh relay with that configuration would give it. Only streams whose
// listener is gone end, and no existing resource is removed.
func TestReloadsUnderLoad(t *testing.T) {
	seed := *loadSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-reload.seed %d", seed)
	w := &loadWorld{T: t, rand: rand.New(rand.NewPCG(seed, 1)), first: freeAddress(t), second: freeAddress(t)}
	w.planes = []*labelledPlane{
		startLabelledPlane(t, "p0", "m1", "m2"), startLabelledPlane(t, "p1", "m1", "m2"), startLabelledPlane(t, "p2", "m1", "m2"),
	}
	w.planes[1].besides = []string{"m3"}
	if *loadReloads > 6 {
		// Clients learn only after seconds of a member that another server does not have.
		w.planes[2].members = []string{"m1", "m2", "m4"}
	}
	w.now = w.draw()
	w.now.second = true
	w.steps = append(w.steps, w.text(w.now, w.first, w.second))
	w.relay, _ = runRelay(t, w.steps[0], slog.New(slog.DiscardHandler))
	kinds := [][]string{nil, {"m1", "m2", "m3"}, {namedOfA}, {namedOfA, namedOfB}, {"m2", namedOfB}}
	var firsts []*grpc.ClientConn
	for range 1 + *loadStreams/100 {
		firsts = append(firsts, connectTo(t, w.first))
	}
	for i := range *loadStreams {
		l := &loadClient{sotw: i%2 == 0, cluster: fmt.Sprintf("c%d", i/2%2), names: kinds[i/4%len(kinds)], second: i%7 == 6}
		l.node = &corev3.Node{Id: fmt.Sprintf("n%d", i/3), Cluster: l.cluster}
		conn := firsts[i%len(firsts)]
		if l.second {
			conn = connectTo(t, w.second)
		}
		l.conn = conn
		w.open(l, conn)
		w.clients = append(w.clients, l)
	}
	for _, l := range w.clients {
		w.check(l, w.now, []*loadConfig{w.now}, false)
	}
	for i := 0; i < *loadReloads; {
		n := 1
		if w.rand.IntN(4) == 0 {
			n = 3 // in quick succession
		}
		var to []*loadConfig
		for range n {
			to = append(to, w.draw())
		}
		w.reload(to)
		if i += n; i%10 < n {
			w.compareWithFresh()
		}
		w.steps = w.steps[max(0, len(w.steps)-8):]
	}
}
