package relay

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"github.com/cockroachdb/datadriven"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/xds-relay/xds-relay/downstream"
)

// TestNoClientIsWorseOffThanWithoutTheRelay plays the loss matrix: every state of a client against
// every state of the control planes. The transcripts in testdata/loss have one file for each
// state of the control planes, which is a column of the tables in testdata/loss.md. The directive is
//
//	play relay=cold|store|warm [servers=2] [clients=ahead] [for=5m]
//	TIME STATE[@VERSION] [STATE of the second server]
//	...
//
// The relay has just been started, or has been started with a store that an earlier one filled while the control
// plane had everything, or it runs, has everything, and serves clients. At the given times the control plane changes
// to another state (see lossPlane). The output shows what the relay sends each client, for control planes that speak
// delta and SotW, and what the client receives if it is connected to the control plane directly:
//
//	+24        24 resources that it did not have
//	24 newer   24 that it had an older version of
//	24 OLDER   24 that it had a newer version of
//	24 again   24 that it has in this version
//	-15        15 that it has are gone
//	empty      an answer with nothing in it
//	CODE       an error of a name, or of a poll
//	@10m       by that time, without: at once
//	.          nothing
//	(better)   a resource is there for a minute longer than with a direct connection
//
// A fresh client has nothing. A resumed one has everything when it connects. Both connect at the first of the states;
// an open one was connected before. Clients that are ahead connect with newer versions than the relay has, from
// another relay.
//
// In every transcript, a client must never lack a resource that it would have with a direct connection, nor have an
// older version of it. And none may receive an empty state that it would not receive with a direct connection. Delta
// clients that reconnect with newer members of a set than the store has are the exception: they receive the members
// that differ.
func TestNoClientIsWorseOffThanWithoutTheRelay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	pasts := lossPasts(t)
	datadriven.Walk(t, lossFolder, func(t *testing.T, path string) {
		if raceEnabled && !strings.HasSuffix(path, "_half.txt") {
			t.Skip("of each state of the relay, one is enough for the race detector (make test-all runs all without it)")
		}
		if name := filepath.Base(path); testing.Short() && name != "warm_half.txt" && name != "failover_store_half.txt" {
			t.Skip("two of the states are enough with -short (make test-all runs all)")
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			column := parseLossColumn(t, d)
			column.pasts = pasts
			return column.play(t)
		})
	})
}

// lossColumn is a column of the matrix: a state of the control planes.
type lossColumn struct {
	relay   string // cold, store or warm
	servers int
	clients string // ahead, or empty
	lasts   time.Duration
	events  []lossEvent
	pasts   map[string]*lossPast
}

// lossEvent is a new state of the control planes.
type lossEvent struct {
	at        time.Duration
	state     string
	version   string
	secondary string
}

const (
	lossFolder = "testdata/loss"
)

func parseLossColumn(t *testing.T, d *datadriven.TestData) *lossColumn {
	t.Helper()
	c := &lossColumn{servers: 1, lasts: 5 * time.Minute}
	d.ScanArgs(t, "relay", &c.relay)
	d.MaybeScanArgs(t, "servers", &c.servers)
	d.MaybeScanArgs(t, "clients", &c.clients)
	var lasts string
	if d.MaybeScanArgs(t, "for", &lasts) {
		var err error
		if c.lasts, err = time.ParseDuration(lasts); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		at, err := time.ParseDuration(words[0])
		if err != nil {
			t.Fatal(err)
		}
		e := lossEvent{at: at, version: "1"}
		e.state, e.version, _ = strings.Cut(words[1], "@")
		if e.version == "" {
			e.version = "1"
		}
		if len(words) > 2 {
			e.secondary = words[2]
		}
		c.events = append(c.events, e)
	}
	return c
}

// lossRow is a client, and what it receives.
type lossRow struct {
	subject *lossSubject
	service string
	session string
	// relays is what it receives from the relay, by the form of the control plane; and direct what it receives
	// without one.
	relays map[string]*lossClient
	direct *lossClient
}

func (c *lossColumn) play(t *testing.T) string {
	t.Helper()
	var rows []*lossRow
	for i := range lossSubjects {
		s := &lossSubjects[i]
		of := map[string]*lossRow{}
		for _, form := range []string{"delta", "sotw", ""} {
			for _, client := range c.run(t, s, form) {
				id := client.service + "/" + client.session
				row := of[id]
				if row == nil {
					row = &lossRow{subject: s, service: client.service, session: client.session, relays: map[string]*lossClient{}}
					of[id], rows = row, append(rows, row)
				}
				if form == "" {
					row.direct = client
				} else {
					row.relays[form] = client
				}
			}
		}
	}
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "client\t| control plane speaks delta\t| SotW\t| without the relay")
	for _, r := range rows {
		fmt.Fprintf(w, "%s, %s, %s", r.subject.name, r.service, r.session)
		for _, form := range []string{"delta", "sotw"} {
			client, better := r.relays[form], ""
			switch worse := client.worseThan(r.direct, c.means(), c.lasts); {
			case worse == "" && client.betterThan(r.direct, c.means(), c.lasts):
				better = " (better)"
			case worse == "":
			case c.clients == "ahead" && r.subject.noVersions:
				better = " (worse)" // the relay cannot know that it has something
			default:
				t.Errorf("%s, %s, %s, behind a relay to a control plane that speaks %s: %s", r.subject.name, r.service, r.session, form, worse)
			}
			fmt.Fprintf(w, "\t| %s%s", client.describe(), better)
		}
		fmt.Fprintf(w, "\t| %s\n", r.direct.describe())
	}
	_ = w.Flush()
	return out.String()
}

// run plays one subject. form is that of the control plane, empty for a direct connection.
func (c *lossColumn) run(t *testing.T, subject *lossSubject, form string) (clients []*lossClient) {
	t.Helper()
	sessions := [][]string{{"fresh"}, {"resumed"}}
	if c.relay == "warm" {
		sessions = [][]string{{"fresh", "resumed", "open"}}
	}
	for _, with := range sessions {
		path := ""
		if c.relay == "store" && form != "" {
			path = filepath.Join(t.TempDir(), "store.db")
			if err := os.WriteFile(path, c.pasts[form].store, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Test(t, func(t *testing.T) {
			p := &lossPlay{t: t, subject: subject, form: form, store: path, servers: c.servers, past: c.pasts[form+c.clients]}
			clients = append(clients, p.play(c, with)...)
		})
	}
	slices.SortStableFunc(clients, func(a, b *lossClient) int {
		return slices.Index(lossServices, a.service) - slices.Index(lossServices, b.service)
	})
	return clients
}

const lossConfig = `
listeners:
  - address: 127.0.0.1:18000
node: {id: relay}
authorities:
  - name: plain
    servers:
      - {address: "primary:18000", protocol: PROTOCOL}
SECONDARY    failover: {policy: unreachable}
  - name: x
    servers:
      - {address: "primary:18000", protocol: PROTOCOL}
SECONDARY    failover: {policy: unreachable}
old_style_names:
  - authority: plain
views:
  - match: {type: cluster, wildcard: true}
    when: node.cluster == "view"
    collections:
      - xdstp://x/envoy.config.cluster.v3.Cluster/foo/*
      - xdstp://x/envoy.config.cluster.v3.ClusterCollection/l
STORE
`

// lossPlay is one run.
type lossPlay struct {
	t       *testing.T
	subject *lossSubject
	form    string
	store   string // the path, empty for none
	servers int
	past    *lossPast
	times   lossTimes

	primary, secondary *lossPlane
	relay              *servedRelay // nil without one
	handler            http.Handler
	wg                 sync.WaitGroup
}

func (p *lossPlay) startRelay() {
	config := strings.ReplaceAll(lossConfig, "PROTOCOL", p.form)
	second, stored := "", ""
	if p.servers > 1 {
		second = fmt.Sprintf("      - {address: \"secondary:18000\", protocol: %s}\n", p.form)
	}
	if p.store != "" {
		stored = fmt.Sprintf("store: {path: %q}", p.store)
	}
	config = strings.NewReplacer("SECONDARY", second, "STORE", stored).Replace(config)
	p.relay = startInMemory(p.t, config, func(string) dialer {
		return func(ctx context.Context, address string) (net.Conn, error) {
			if strings.HasPrefix(address, "secondary") {
				return p.secondary.dial(ctx, address)
			}
			return p.primary.dial(ctx, address)
		}
	})
	o := downstream.ListenerOptions{LongPoll: 20 * time.Second, WhenUnreachable: downstream.EndNames}
	p.relay.grpc.Stop()
	p.relay.open(o)
	p.handler = p.relay.relay.server.HTTPServer(o).Handler
}

func (p *lossPlay) play(c *lossColumn, sessions []string) (clients []*lossClient) {
	p.primary, p.secondary = &lossPlane{}, &lossPlane{}
	for i := range c.events {
		p.times = append(p.times, c.events[i].at)
	}
	now := func(e *lossEvent) {
		p.primary.restart(e.state, e.version)
		if p.form == "" && p.secondary.state != "" && !p.primary.away() {
			p.secondary.restart(p.secondary.state, p.secondary.version) // gRFC A71: back to the first server
		}
		if e.secondary != "" {
			p.secondary.restart(e.secondary, e.version)
		}
	}
	p.secondary.restart("away", "1")
	if c.relay == "warm" {
		p.primary.restart("all", "1")
	} else {
		now(&c.events[0])
	}
	if p.form != "" {
		p.startRelay()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer func() {
		cancel()
		p.wg.Wait()
		if p.relay != nil {
			p.relay.close()
		}
		p.primary.stop()
		p.secondary.stop()
		synctest.Wait()
	}()
	start := func(sessions ...string) {
		for _, service := range lossServices {
			for _, session := range sessions {
				polls := service == "rest" || service == "fetch"
				if p.subject.over(service) && slices.Contains(sessions, session) && (session != "open" || !polls) {
					clients = append(clients, p.start(ctx, service, session))
				}
			}
		}
	}
	if c.relay == "warm" {
		start("open")
		time.Sleep(time.Minute)
	}
	began := time.Now()
	for i := range c.events {
		time.Sleep(c.events[i].at - time.Since(began))
		if i == 0 {
			for _, client := range clients {
				client.begin()
			}
		}
		if i > 0 || c.relay == "warm" {
			now(&c.events[i])
		}
		if i == 0 {
			synctest.Wait() // open clients notice first
			start(slices.DeleteFunc(slices.Clone(sessions), func(s string) bool { return s == "open" })...)
		}
	}
	time.Sleep(c.lasts - time.Since(began))
	return clients
}

// start starts a client.
func (p *lossPlay) start(ctx context.Context, service, session string) *lossClient {
	c := &lossClient{lossSubject: p.subject, service: service, session: session, relayed: p.relay != nil, times: p.times, has: map[string]string{}, versions: map[string]string{}}
	if session == "resumed" {
		before := p.past.clients[p.subject.name+"/"+service]
		c.has, c.versions, c.version = maps.Clone(before.has), maps.Clone(before.versions), before.version
	}
	c.begin()
	if service == "rest" {
		c.poll = p.pollPlane
		if p.relay != nil {
			c.poll = p.pollRelay
		}
	}
	c.dial = func(t *testing.T) *grpc.ClientConn {
		if p.relay != nil {
			conn, _ := p.relay.dial(t)
			return conn
		}
		conn, err := grpc.NewClient("passthrough:///control-plane", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Second, Multiplier: 2, MaxDelay: lossBackoff}}),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				if p.primary.away() {
					return p.secondary.dial(ctx, address)
				}
				return p.primary.dial(ctx, address)
			}))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	p.wg.Go(func() { c.run(ctx, p.t) })
	return c
}

// pollRelay polls the relay over REST.
func (p *lossPlay) pollRelay(ctx context.Context, req *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, string) {
	body, err := protojson.Marshal(req)
	if err != nil {
		p.t.Fatal(err)
	}
	path := map[bool]string{true: "clusters", false: "endpoints"}[req.GetTypeUrl() == lossCluster]
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v3/discovery:"+path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	p.handler.ServeHTTP(w, r)
	switch w.Code {
	case http.StatusOK:
		if ctx.Err() != nil {
			return nil, "" // it has given up
		}
	case http.StatusNotModified:
		return nil, ""
	default:
		return nil, fmt.Sprint(w.Code)
	}
	m := new(discoveryv3.DiscoveryResponse)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(w.Body.Bytes(), m); err != nil {
		p.t.Error(err)
	}
	return m, ""
}

// pollPlane polls the control plane over REST.
func (p *lossPlay) pollPlane(ctx context.Context, req *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, string) {
	plane := p.primary
	if plane.away() {
		plane = p.secondary
	}
	plane.mu.Lock()
	w := lossWorld{plane.state, plane.version}
	plane.mu.Unlock()
	switch w.state {
	case "away":
		return nil, ""
	case "refusing":
		return nil, "403"
	case "half-open", "silent":
		<-ctx.Done()
		return nil, ""
	}
	return w.sotw(req, req.GetNode()), ""
}

// lossPast is the state from a time when the control plane had everything: the relay's store, and the clients'
// resources.
type lossPast struct {
	store   []byte
	clients map[string]*lossClient
}

// lossPasts returns the pasts by the form of the control plane, empty for a direct connection.
func lossPasts(t *testing.T) map[string]*lossPast {
	t.Helper()
	pasts := map[string]*lossPast{}
	for _, form := range []string{"delta", "sotw", ""} {
		for clients, version := range map[string]string{"": "1", "ahead": "2"} {
			path := filepath.Join(t.TempDir(), "store.db")
			past := &lossPast{clients: map[string]*lossClient{}}
			for i := range lossSubjects {
				synctest.Test(t, func(t *testing.T) {
					p := &lossPlay{t: t, subject: &lossSubjects[i], form: form, store: path, servers: 1}
					for _, c := range p.play(&lossColumn{relay: "cold", servers: 1, lasts: 30 * time.Second, events: []lossEvent{{state: "all", version: version}}}, []string{"fresh"}) {
						past.clients[c.name+"/"+c.service] = c
					}
				})
			}
			var err error
			if past.store, err = os.ReadFile(path); err != nil && form != "" {
				t.Fatal(err)
			}
			pasts[form+clients] = past
		}
	}
	return pasts
}

// betterThan reports whether the client has one of the resources that the control plane means it to have for clearly
// longer than with a direct connection.
func (c *lossClient) betterThan(direct *lossClient, means lossWorld, lasts time.Duration) bool {
	without := direct.durations(lasts)
	for name, d := range c.durations(lasts) {
		if d-without[name] > time.Minute && len(means.names(c.typeURL, name, c.node())) > 0 {
			return true
		}
	}
	return false
}

// durations returns for how long the client has had each resource in the end.
func (c *lossClient) durations(lasts time.Duration) map[string]time.Duration {
	had := map[string]time.Duration{}
	for i, m := range c.history {
		until := lasts
		if i+1 < len(c.history) {
			until = c.history[i+1].at
		}
		for name := range m.has {
			had[name] += until - m.at
		}
	}
	return had
}

// late is how much later a client may receive something than with a direct connection. Streams are opened again with
// backoff, up to 30 s.
const late = 50 * time.Second

// means returns what the control plane means clients to have in the end: a half, or everything.
func (c *lossColumn) means() lossWorld {
	if last := c.events[len(c.events)-1]; last.state == "half" || last.state == "nothing" {
		return lossWorld{last.state, last.version}
	}
	return lossWorld{"all", "1"}
}

// worseThan returns what is worse than with a direct connection, empty if nothing is. Clients may lack resources that
// the control plane does not mean them to have.
func (c *lossClient) worseThan(direct *lossClient, means lossWorld, lasts time.Duration) string {
	var times []time.Duration
	for _, m := range append(slices.Clone(c.history), direct.history...) {
		times = append(times, m.at+late)
	}
	meant := map[string]bool{}
	for _, at := range append(times, lasts) {
		now := c.at(at)
		for name, content := range direct.steadily(at-late, at) {
			is, known := meant[name]
			if !known {
				is = len(means.names(c.typeURL, name, c.node())) > 0
				meant[name] = is
			}
			if !is {
				continue
			}
			switch has, ok := now[name]; {
			case !ok:
				return fmt.Sprintf("after %v it is without %s", at, name)
			case has < content:
				return fmt.Sprintf("after %v it has %q of %s, in place of %q", at, has, name, content)
			}
		}
	}
	for _, s := range c.steps {
		if s.empty && means.state != "nothing" && !slices.ContainsFunc(direct.steps, func(d *lossStep) bool { return d.empty }) {
			return fmt.Sprintf("it receives an empty state (@%s)", s.at)
		}
	}
	return ""
}

// at returns what the client has at a time.
func (c *lossClient) at(t time.Duration) map[string]string {
	has := c.history[0].has
	for _, m := range c.history {
		if m.at <= t {
			has = m.has
		}
	}
	return has
}

// steadily returns what the client has all the time, with the oldest content.
func (c *lossClient) steadily(from, to time.Duration) map[string]string {
	has := maps.Clone(c.at(from))
	for _, m := range c.history {
		if m.at <= from || m.at > to {
			continue
		}
		for name, content := range has {
			if now, ok := m.has[name]; !ok {
				delete(has, name)
			} else {
				has[name] = min(now, content)
			}
		}
	}
	return has
}
