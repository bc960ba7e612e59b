package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cel.dev/cel-go/cel"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/rights"
)

// rightsClient is one client: its identity, its protocol, and its requests, in order.
type rightsClient struct {
	who  int
	form string // delta, sotw; delta-type, sotw-type: on the service of the type; fetch, rest
	asks [][]int
	v2   bool // over the services of version 2
	// waits says that the client requests more only after the first response. SotW only.
	waits bool

	mu       sync.Mutex
	received bytes.Buffer // every byte
	ended    error
	status   int // of REST
}

var rightsIdentities = []*identity.Identity{
	{Source: identity.None},
	{Source: identity.MTLS, Subject: "o1", DNSNames: []string{"n0"}},
	{Source: identity.JWT, Subject: "s", Claims: map[string]any{"team": "x"}},
	{Source: identity.MTLS, SPIFFEPath: "xdstp://b"},
}

var (
	rightsWhen = []string{
		``, `authority == "a"`, `authority == "b"`, `authority == "v"`, `type_url == "` + xdstype.SecretV3 + `"`,
		`type_url.endsWith(".Cluster")`, `name == "*"`, `name.endsWith("/*")`, `name.contains("n0")`, `name.endsWith("/n1")`,
		`name.startsWith("o1")`, `name.contains("#entry")`, `name in ["o0", "al0"]`, `name == identity.subject`, `identity.source == "mtls"`,
		`has(identity.claims) && identity.claims.team == "x"`, `name.matches("o[01]")`, `name.contains("gone")`, `name.contains("Collection")`, `name.endsWith("/al")`, `name.endsWith("/r0")`,
	}
	rightsAllow = []string{
		`true`, `true`, `false`, `identity.source != "none"`, `identity.subject == "s"`, `name.startsWith("o")`, `!name.contains("n1")`,
		`identity.dns_names.exists(d, name.contains(d))`, `name.startsWith(identity.spiffe_path)`,
	}
)

// TestNobodyGetsWhatTheRulesDeny: for any rules, clients and requests, no client receives a byte of a resource that
// the rules deny it, and everything that they allow arrives. The oracle evaluates the whole expressions for the names
// that a person sees in the request.
func TestNobodyGetsWhatTheRulesDeny(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var rules [][2]string
		for range rapid.IntRange(1, 5).Draw(rt, "rules") {
			rules = append(rules, [2]string{rapid.SampledFrom(rightsWhen).Draw(rt, "when"), rapid.SampledFrom(rightsAllow).Draw(rt, "allow")})
		}
		if rapid.Bool().Draw(rt, "allows the rest") {
			rules = append(rules, [2]string{"", "true"})
		}
		var clients []*rightsClient
		for range rapid.IntRange(1, 5).Draw(rt, "clients") {
			clients = append(clients, rapid.Custom(drawRightsClient).Draw(rt, "client"))
		}
		if rapid.Bool().Draw(rt, "again") { // others send the same lists
			for _, c := range clients[:len(clients):len(clients)] {
				clients = append(clients, &rightsClient{who: rapid.IntRange(0, len(rightsIdentities)-1).Draw(rt, "who"), form: c.form, asks: c.asks, v2: c.v2})
			}
		}
		looks := rapid.IntRange(0, len(rightsIdentities)-1).Draw(rt, "who looks")
		var wrong string
		synctest.Test(t, func(t *testing.T) { wrong = playRights(t, rules, clients, looks) })
		if wrong != "" {
			rt.Errorf("rules %q: %s", rules, wrong)
		}
	})
}

// A client receives a cluster, and then requests an alias of it and the wildcard, which it may not have: the relay
// can send no further state. The client has the cluster under the one name, and the operator sees that it does not
// have it under the other.
func TestAClientHasAResourceUnderOneOfTwoNames(t *testing.T) {
	at := func(name string) int {
		return slices.IndexFunc(rightsRequests, func(r request) bool { return r.word == "cluster2" && r.name == name })
	}
	c := &rightsClient{form: "sotw", asks: [][]int{{at("o2")}, {at("*"), at("al1"), at("o1")}}, waits: true}
	synctest.Test(t, func(t *testing.T) {
		if wrong := playRights(t, [][2]string{{`name == "*"`, "false"}, {"", "true"}}, []*rightsClient{c}, 0); wrong != "" {
			t.Error(wrong)
		}
	})
	if got := marker("cluster2", "o2"); !c.has(got) {
		t.Errorf("the client was not sent %s", got)
	}
}

func drawRightsClient(rt *rapid.T) *rightsClient {
	c := &rightsClient{
		who:  rapid.IntRange(0, len(rightsIdentities)-1).Draw(rt, "who"),
		form: rapid.SampledFrom([]string{"delta", "sotw", "delta", "sotw", "delta-type", "sotw-type", "fetch", "rest"}).Draw(rt, "form"),
	}
	word := rapid.SampledFrom([]string{"cluster", "endpoint", "secret", "cluster2", "secret2"}).Draw(rt, "type")
	several := c.form == "delta" || c.form == "sotw"
	requests := rapid.IntRange(1, 3).Draw(rt, "requests")
	if c.form == "fetch" || c.form == "rest" {
		requests = 1
	}
	c.v2 = strings.HasSuffix(word, "2") && !several
	for range requests {
		if several {
			word = rapid.SampledFrom([]string{"cluster", "endpoint", "endpoint", "secret", "cluster2", "secret2"}).Draw(rt, "type")
		}
		var of, ask []int
		for i, r := range rightsRequests {
			if r.word == word {
				of = append(of, i)
			}
		}
		for range rapid.IntRange(1, 4).Draw(rt, "names") {
			if i := rapid.SampledFrom(of).Draw(rt, "name"); !slices.Contains(ask, i) {
				ask = append(ask, i)
			}
		}
		c.asks = append(c.asks, ask)
	}
	return c
}

// rightsOracle decides like a person would.
type rightsOracle struct {
	rules [][2]string
	env   *cel.Env
}

func (o *rightsOracle) eval(expression string, v map[string]any) (is, ok bool) {
	if expression == "" {
		return true, true
	}
	checked, issues := o.env.Compile(expression)
	if issues.Err() != nil {
		panic(issues.Err())
	}
	program, err := o.env.Program(checked)
	if err != nil {
		panic(err)
	}
	out, _, err := program.Eval(v)
	if err != nil {
		return false, false
	}
	is, ok = out.Value().(bool)
	return is, ok
}

func (o *rightsOracle) allows(id *identity.Identity, word string, of nameOf) bool {
	typeURL := rightsTypes[strings.TrimSuffix(word, "2")]
	if typeURL == xdstype.SecretV3 && id.Source == identity.None {
		return false
	}
	v := map[string]any{"authority": of.authority, "type_url": typeURL, "name": of.name, "identity": id}
	for _, rule := range o.rules {
		when, ok := o.eval(rule[0], v)
		if ok && !when {
			continue
		}
		allow, allowOK := o.eval(rule[1], v)
		return ok && allowOK && allow
	}
	return false
}

// may reports whether a client may have its request by its own words, and by the resources' own names.
func (o *rightsOracle) may(c *rightsClient, r *request) (asked, own bool) {
	all := func(names []nameOf) bool {
		return !slices.ContainsFunc(names, func(of nameOf) bool { return !o.allows(rightsIdentities[c.who], r.word, of) })
	}
	asked = all(r.words)
	return asked, asked && all(r.own)
}

func playRights(t *testing.T, rules [][2]string, clients []*rightsClient, looks int) (wrong string) {
	var config strings.Builder
	config.WriteString(rightsConfig + "rights:\n")
	for _, rule := range rules {
		fmt.Fprintf(&config, "  - allow: %q\n", rule[1])
		if rule[0] != "" {
			fmt.Fprintf(&config, "    when: %q\n", rule[0])
		}
	}
	env, err := rights.Environment()
	if err != nil {
		t.Fatal(err)
	}
	oracle := &rightsOracle{rules, env}
	plane := newRightsPlane()
	serving := startInMemory(t, config.String(), func(string) dialer { return plane.dial })
	defer plane.down()
	defer serving.close()
	o := downstream.ListenerOptions{V2: true, LongPoll: longEnough / 2, Identify: func(p identity.Proof) (*identity.Identity, error) {
		for i, id := range rightsIdentities {
			if slices.Contains(p.Authorization, fmt.Sprint(i)) {
				return id, nil
			}
		}
		return nil, errors.New("nobody")
	}}
	o.Door = downstream.NewDoor(o)
	serving.grpc.Stop()
	serving.open(o)
	rest := serving.relay.server.HTTPServer(o).Handler
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, c := range clients {
		running.Go(func() { c.run(ctx, serving, rest) })
		synctest.Wait() // one after the other, so that lists are known
	}
	time.Sleep(longEnough)
	synctest.Wait()
	for i, c := range clients {
		if wrong := c.check(oracle); wrong != "" {
			return fmt.Sprintf("client %d, identity %d, %s: %s", i, c.who, c.form, wrong)
		}
	}
	c := &rightsClient{who: looks}
	if wrong := c.looks(ctx, serving, oracle); wrong != "" {
		return fmt.Sprintf("identity %d, CSDS: %s", looks, wrong)
	}
	return (&rightsOperator{ctx: ctx, relay: serving.relay, oracle: oracle}).sees(clients)
}

// looks returns what is wrong with what a client sees in CSDS, of clients and of the relay itself.
func (c *rightsClient) looks(ctx context.Context, serving *servedRelay, o *rightsOracle) string {
	conn, err := c.connect(serving)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	ctx = metadata.AppendToOutgoingContext(ctx, identity.Header, fmt.Sprint(c.who))
	for _, req := range []*statusv3.ClientStatusRequest{{}, {NodeMatchers: []*matcherv3.NodeMatcher{{}}}} {
		if _, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(ctx, req); err != nil {
			return err.Error()
		}
	}
	may := map[string]bool{}
	for i := range rightsRequests {
		if _, all := o.may(c, &rightsRequests[i]); all {
			for _, mark := range rightsRequests[i].gives {
				may[mark] = true
			}
		}
	}
	for mark := range c.marks {
		if !may[mark] {
			return fmt.Sprintf("%s saw %s, which it may not have", rightsIdentities[c.who].Source, mark)
		}
		if strings.HasPrefix(mark, "mark.secret") {
			return "it shows the secret " + mark
		}
	}
	if bytes.Contains(c.received.Bytes(), []byte(sealed)) {
		return "it shows the private key of a cluster"
	}
	return ""
}

// marks iterates over the markers that the client has received.
func (c *rightsClient) marks(yield func(string) bool) {
	for rest := c.received.Bytes(); ; {
		at := bytes.Index(rest, []byte("mark."))
		if at < 0 {
			return
		}
		rest = rest[at:]
		mark := string(rest[:bytes.Index(rest, []byte(".kram"))+len(".kram")])
		if !yield(mark) {
			return
		}
		rest = rest[len(mark):]
	}
}

func (c *rightsClient) connect(serving *servedRelay) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///relay", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(c)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return serving.lis.DialContext(ctx) }))
}

// Marshal implements encoding.CodecV2, which sees every byte.
func (c *rightsClient) Marshal(m any) (mem.BufferSlice, error) {
	data, err := proto.Marshal(m.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(data)}, err
}

// Unmarshal implements encoding.CodecV2.
func (c *rightsClient) Unmarshal(data mem.BufferSlice, m any) error {
	raw := data.Materialize()
	c.mu.Lock()
	c.received.Write(raw)
	c.mu.Unlock()
	return proto.Unmarshal(raw, m.(proto.Message))
}

// Name implements encoding.CodecV2.
func (c *rightsClient) Name() string { return "proto" }

var _ encoding.CodecV2 = (*rightsClient)(nil)

func (c *rightsClient) run(ctx context.Context, serving *servedRelay, rest http.Handler) {
	if c.form == "rest" {
		c.post(ctx, rest)
		return
	}
	conn, err := c.connect(serving)
	if err == nil {
		err = c.speak(metadata.AppendToOutgoingContext(ctx, identity.Header, fmt.Sprint(c.who)), conn)
		_ = conn.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = err
}

// service returns the service of the type of the client's first request.
func (c *rightsClient) service() *xdstype.Service {
	url := rightsTypes[rightsRequests[c.asks[0][0]].word]
	if s := xdstype.Of(url).Service(url); s != nil && s.V2 == c.v2 {
		return s
	}
	return xdstype.AggregatedV3
}

func (c *rightsClient) names(ask []int) (typeURL string, names []string) {
	for _, i := range ask {
		names = append(names, rightsRequests[i].name)
	}
	return rightsTypes[rightsRequests[ask[0]].word], names
}

func (c *rightsClient) speak(ctx context.Context, conn *grpc.ClientConn) error {
	node := &corev3.Node{Id: "n"}
	if c.form == "fetch" {
		typeURL, names := c.names(c.asks[0])
		s := c.service()
		return conn.Invoke(ctx, s.Method(s.Fetch), &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNames: names}, new(discoveryv3.DiscoveryResponse))
	}
	service, delta := xdstype.AggregatedV3, strings.HasPrefix(c.form, "delta")
	if strings.HasSuffix(c.form, "-type") {
		service = c.service()
	}
	method := service.Stream
	if delta {
		method = service.Delta
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, service.Method(method))
	if err != nil {
		return err
	}
	if delta {
		return c.speakDelta(stream, node)
	}
	return c.speakSotW(stream, node)
}

func (c *rightsClient) speakDelta(stream grpc.ClientStream, node *corev3.Node) error {
	for _, ask := range c.asks {
		typeURL, names := c.names(ask)
		if err := stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: names}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	for {
		resp := new(discoveryv3.DeltaDiscoveryResponse)
		if err := stream.RecvMsg(resp); err != nil {
			return err
		}
		_ = stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()})
	}
}

// speakSotW requests more names with each request, as SotW requires.
func (c *rightsClient) speakSotW(stream grpc.ClientStream, node *corev3.Node) error {
	wants := map[string][]string{}
	last := map[string]*discoveryv3.DiscoveryResponse{}
	ask := func(typeURL string) error {
		err := stream.SendMsg(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNames: wants[typeURL], VersionInfo: last[typeURL].GetVersionInfo(), ResponseNonce: last[typeURL].GetNonce()})
		if errors.Is(err, io.EOF) {
			return nil // what ended it comes when it is read
		}
		return err
	}
	receive := func() error {
		resp := new(discoveryv3.DiscoveryResponse)
		if err := stream.RecvMsg(resp); err != nil {
			return err
		}
		last[resp.GetTypeUrl()] = resp
		return ask(resp.GetTypeUrl())
	}
	for i, of := range c.asks {
		typeURL, names := c.names(of)
		for _, name := range names {
			if !slices.Contains(wants[typeURL], name) {
				wants[typeURL] = append(wants[typeURL], name)
			}
		}
		if err := ask(typeURL); err != nil {
			return err
		}
		if i == 0 && c.waits {
			if err := receive(); err != nil {
				return err
			}
		}
	}
	for {
		if err := receive(); err != nil {
			return err
		}
	}
}

func (c *rightsClient) post(ctx context.Context, rest http.Handler) {
	typeURL, names := c.names(c.asks[0])
	body, err := protojson.Marshal(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "n"}, TypeUrl: typeURL, ResourceNames: names})
	if err != nil {
		panic(err)
	}
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, c.service().Path, bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(identity.Header, fmt.Sprint(c.who))
	w := httptest.NewRecorder()
	rest.ServeHTTP(w, req)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = w.Code
	c.received.Write(w.Body.Bytes())
}

// check returns what is wrong with what the client has received.
func (c *rightsClient) check(o *rightsOracle) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	may := map[string]bool{} // markers
	blocked := map[string]bool{}
	// If the client may request a name, but may not have the resource's own name (of an alias), neither is true: its
	// stream ends once the relay knows the resource, unless it never looks.
	nothing, something := true, false
	for _, ask := range c.asks {
		for _, i := range ask {
			r := &rightsRequests[i]
			asked, all := o.may(c, r)
			nothing, something = nothing && !asked, something || all
			if !asked && r.name == "*" && !strings.HasPrefix(c.form, "delta") {
				blocked[r.word] = true // any response would be an answer
			}
			for _, mark := range r.gives {
				may[mark] = may[mark] || all
			}
		}
	}
	for _, ask := range c.asks {
		for _, i := range ask {
			r := &rightsRequests[i]
			if _, all := o.may(c, r); !all || blocked[r.word] || c.form == "rest" && r.notJSON {
				continue
			}
			for _, mark := range r.gives {
				if !bytes.Contains(c.received.Bytes(), []byte(mark)) {
					return fmt.Sprintf("%s may have %s by %s, and did not get it (%v, status %d)\n%q", rightsIdentities[c.who].Source, mark, r.name, c.ended, c.status, c.received.Bytes())
				}
			}
		}
	}
	for mark := range c.marks {
		if !may[mark] {
			return fmt.Sprintf("%s got %s, which it may not have by any of %v", rightsIdentities[c.who].Source, mark, c.asked())
		}
	}
	return c.checkEnd(nothing, something)
}

func (c *rightsClient) asked() (names []string) {
	for _, ask := range c.asks {
		typeURL, of := c.names(ask)
		names = append(append(names, typeURL+":"), of...)
	}
	return names
}

// checkEnd compares the end of the client's stream or request with what the client may have.
func (c *rightsClient) checkEnd(nothing, something bool) string {
	denied := status.Code(c.ended) == codes.PermissionDenied || c.status == http.StatusForbidden
	switch {
	case nothing && !denied:
		return fmt.Sprintf("it may have nothing of %v, and its stream goes on (%v, status %d)", c.asked(), c.ended, c.status)
	case something && denied && c.form != "fetch" && c.form != "rest":
		return fmt.Sprintf("it may have something of %v, and its stream ended: %v", c.asked(), c.ended)
	}
	return ""
}
