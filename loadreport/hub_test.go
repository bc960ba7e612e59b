package loadreport

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/cache"
)

// testHub is a hub whose streams are driven by the test.
type testHub struct {
	*Hub
	clock   time.Time
	streams map[string]*Collector // by authority
}

func newTestHub() *testHub {
	h := &testHub{clock: time.Unix(1_000_000, 0), streams: map[string]*Collector{}}
	h.Hub = NewHub(Options{
		Open: func(c *Collector, _ Names) Upstream {
			h.streams[c.Scope().Authority] = c
			return quietUpstream{}
		},
		Canonical: strings.ToLower,
		Log:       slog.New(slog.DiscardHandler),
	})
	h.now = func() time.Time { return h.clock }
	return h
}

type quietUpstream struct{}

func (quietUpstream) Wake()  {}
func (quietUpstream) Close() {}

// testNames are the names of a client for which AUTHORITY/CLUSTER, in upper or lower case, is the cluster CLUSTER of
// an authority.
type testNames struct {
	scopes []string
	denied []string
	off    []string
}

func (n *testNames) Scopes() (scopes []cache.Scope) {
	for _, authority := range n.scopes {
		scopes = append(scopes, cache.Scope{Authority: authority})
	}
	return scopes
}

func (n *testNames) Cluster(name string) (cache.Scope, string, error) {
	canonical := strings.ToLower(name)
	authority, _, ok := strings.Cut(canonical, "/")
	switch {
	case !ok:
		return cache.Scope{}, "", fmt.Errorf("%q has no authority", name)
	case slices.Contains(n.denied, canonical):
		return cache.Scope{}, "", fmt.Errorf("%q is denied", name)
	case slices.Contains(n.off, authority):
		return cache.Scope{}, "", ErrOff
	}
	return cache.Scope{Authority: authority}, canonical, nil
}

func (*testNames) Close() {}

// TestTranscripts plays testdata/*.txt: clients that report, and the control planes of their authorities.
//
//	client NAME authorities=(A,B) [all] [go] [denied=CLUSTER] [off=A]
//	                          a client comes; it can be asked for all clusters; it is gRPC for Go
//	reconfigure NAME authorities=(A,B) [denied=CLUSTER] [off=A]
//	                          the configuration changes for it
//	gone NAME                 it goes
//	asked A [all] [CLUSTER...] [every=10s] [endpoints]
//	                          the control plane of an authority answers
//	lost A | refused A        its stream is lost; it takes no reports
//	report NAME [interval=10s]
//	    one line for each locality, AUTHORITY/CLUSTER LOCALITY followed by any of
//	        ok=N failed=N issued=N now=N  requests; now are in progress
//	        service=S                     of that cluster_service_name
//	        drop=CATEGORY:N dropped=N     dropped ones of the cluster
//	        metric=NAME:REQUESTS:TOTAL    cpu=REQUESTS:TOTAL the same
//	        endpoint=ADDRESS              the requests are those of an endpoint of the locality
//	send A [fails=N] [most=BYTES]
//	                          the sum is sent; the messages from the Nth on cannot be
//	discarded                 how many parts of reports were discarded so far
//	after DURATION            time passes
//	over A                    whether the stream is not needed any more
//
// After each command, the output shows what clients were sent.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		p := &player{testHub: newTestHub(), clients: map[string]*testClient{}}
		datadriven.RunTest(t, path, p.play)
	})
}

type player struct {
	*testHub
	clients map[string]*testClient
}

type testClient struct {
	*Client
	names *testNames
}

func (p *player) play(t *testing.T, d *datadriven.TestData) string {
	var out strings.Builder
	switch d.Cmd {
	case "client", "reconfigure":
		names, node := scanClient(t, d)
		if d.Cmd == "reconfigure" {
			p.clients[d.CmdArgs[0].Key].names = names
			p.Reconfigure()
			break
		}
		c := &testClient{names: names}
		p.clients[d.CmdArgs[0].Key] = c
		c.Client = p.Open(ClientOptions{Node: node, Account: d.CmdArgs[0].Key, Names: func() Names { return c.names }})
	case "gone":
		p.clients[d.CmdArgs[0].Key].Close()
		delete(p.clients, d.CmdArgs[0].Key)
	case "asked":
		every := p.streams[d.CmdArgs[0].Key].Asked(scanAsk(t, d))
		fmt.Fprintf(&out, "every %v\n", every)
	case "lost":
		p.streams[d.CmdArgs[0].Key].Failed()
	case "refused":
		p.streams[d.CmdArgs[0].Key].Refused()
	case "report":
		p.clients[d.CmdArgs[0].Key].Report(scanReport(t, d))
	case "send":
		fails, most := 1<<30, 1<<20
		d.MaybeScanArgs(t, "fails", &fails)
		d.MaybeScanArgs(t, "most", &most)
		messages, at, ok := p.streams[d.CmdArgs[0].Key].Take(most)
		if !ok {
			return "nothing is asked for\n"
		}
		for i, message := range messages {
			if i >= fails {
				p.streams[d.CmdArgs[0].Key].Restore(messages[i:], at)
				out.WriteString("(not sent)\n")
				break
			}
			writeReport(&out, message)
		}
		if len(messages) == 0 {
			out.WriteString("no load\n")
		}
	case "after":
		took, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		p.clock = p.clock.Add(took)
	case "over":
		fmt.Fprintln(&out, p.streams[d.CmdArgs[0].Key].Over())
	case "discarded":
		fmt.Fprintln(&out, p.Stats().Discarded)
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	for _, name := range slices.Sorted(maps.Keys(p.clients)) {
		r, again := p.clients[name].Response()
		if r != nil {
			fmt.Fprintf(&out, "%s is asked for %s\n", name, describe(r))
		}
		if again > 0 {
			fmt.Fprintf(&out, "%s waits %v\n", name, again)
		}
	}
	if out.Len() == 0 {
		return "ok\n"
	}
	return out.String()
}

func describe(r *lrsv3.LoadStatsResponse) string {
	what := "[" + strings.Join(r.GetClusters(), " ") + "]"
	if r.GetSendAllClusters() {
		what += " all clusters"
	}
	if r.GetReportEndpointGranularity() {
		what += " per endpoint"
	}
	return what + " every " + r.GetLoadReportingInterval().AsDuration().String()
}

func scanClient(t *testing.T, d *datadriven.TestData) (*testNames, *corev3.Node) {
	n, node := &testNames{}, &corev3.Node{Id: d.CmdArgs[0].Key}
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "authorities":
			n.scopes = arg.Vals
		case "denied":
			n.denied = arg.Vals
		case "off":
			n.off = arg.Vals
		case "all":
			node.ClientFeatures = append(node.ClientFeatures, SupportsAll)
		case "go":
			node.UserAgentName = "gRPC Go"
		default:
			t.Fatalf("unknown argument %s", arg.Key)
		}
	}
	return n, node
}

func scanAsk(t *testing.T, d *datadriven.TestData) *lrsv3.LoadStatsResponse {
	r := &lrsv3.LoadStatsResponse{LoadReportingInterval: durationpb.New(10 * time.Second)}
	for _, arg := range d.CmdArgs[1:] {
		switch {
		case arg.Key == "all":
			r.SendAllClusters = true
		case arg.Key == "endpoints":
			r.ReportEndpointGranularity = true
		case arg.Key == "every" && arg.Vals[0] == "none":
			r.LoadReportingInterval = nil
		case arg.Key == "every":
			every, err := time.ParseDuration(arg.Vals[0])
			if err != nil {
				t.Fatal(err)
			}
			r.LoadReportingInterval = durationpb.New(every)
		default:
			r.Clusters = append(r.Clusters, arg.Key)
		}
	}
	return r
}

// scanReport reads a report. Lines of one cluster that follow each other are one.
func scanReport(t *testing.T, d *datadriven.TestData) *lrsv3.LoadStatsRequest {
	interval := "10s"
	d.MaybeScanArgs(t, "interval", &interval)
	covers, err := time.ParseDuration(interval)
	if err != nil {
		t.Fatal(err)
	}
	r := &lrsv3.LoadStatsRequest{}
	var st *endpointv3.ClusterStats
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		if st == nil || st.ClusterName != words[0] || strings.Contains(line, "service=") {
			st = &endpointv3.ClusterStats{ClusterName: words[0], LoadReportInterval: durationpb.New(covers)}
			r.ClusterStats = append(r.ClusterStats, st)
		}
		if len(words) < 2 {
			continue
		}
		l := &endpointv3.UpstreamLocalityStats{Locality: &corev3.Locality{Zone: words[1]}}
		var e *endpointv3.UpstreamEndpointStats
		for _, word := range words[2:] {
			key, value, _ := strings.Cut(word, "=")
			parts := strings.Split(value, ":")
			count := func(i int) uint64 {
				n, err := strconv.ParseUint(parts[i], 10, 64)
				if err != nil {
					t.Fatalf("%s: %v", word, err)
				}
				return n
			}
			switch key {
			case "service":
				st.ClusterServiceName = value
			case "endpoint":
				e = &endpointv3.UpstreamEndpointStats{Address: address(value)}
				l.UpstreamEndpointStats = append(l.UpstreamEndpointStats, e)
			case "ok":
				if e != nil {
					e.TotalSuccessfulRequests = count(0)
				} else {
					l.TotalSuccessfulRequests = count(0)
				}
			case "failed":
				l.TotalErrorRequests = count(0)
			case "issued":
				l.TotalIssuedRequests = count(0)
			case "now":
				if e != nil {
					e.TotalRequestsInProgress = count(0)
				} else {
					l.TotalRequestsInProgress = count(0)
				}
			case "dropped":
				st.TotalDroppedRequests = count(0)
			case "drop":
				st.DroppedRequests = append(st.DroppedRequests, &endpointv3.ClusterStats_DroppedRequests{Category: parts[0], DroppedCount: count(1)})
			case "metric":
				total, err := strconv.ParseFloat(parts[2], 64)
				if err != nil {
					t.Fatalf("%s: %v", word, err)
				}
				l.LoadMetricStats = append(l.LoadMetricStats, &endpointv3.EndpointLoadMetricStats{MetricName: parts[0], NumRequestsFinishedWithMetric: count(1), TotalMetricValue: total})
			case "cpu":
				l.CpuUtilization = &endpointv3.UnnamedEndpointLoadMetricStats{NumRequestsFinishedWithMetric: count(0), TotalMetricValue: float64(count(1))}
			default:
				t.Fatalf("unknown %s", word)
			}
		}
		st.UpstreamLocalityStats = append(st.UpstreamLocalityStats, l)
	}
	return r
}

func address(text string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: text}}}
}

// writeReport writes a message to a control plane in the words of reports.
func writeReport(out *strings.Builder, message []*endpointv3.ClusterStats) {
	out.WriteString("report\n")
	for _, st := range message {
		fmt.Fprintf(out, "    %s of %v", st.GetClusterName(), st.GetLoadReportInterval().AsDuration())
		if st.GetClusterServiceName() != "" {
			fmt.Fprintf(out, " service=%s", st.GetClusterServiceName())
		}
		if st.GetTotalDroppedRequests() > 0 {
			fmt.Fprintf(out, " dropped=%d", st.GetTotalDroppedRequests())
		}
		for _, d := range st.GetDroppedRequests() {
			fmt.Fprintf(out, " drop=%s:%d", d.GetCategory(), d.GetDroppedCount())
		}
		out.WriteString("\n")
		for _, l := range st.GetUpstreamLocalityStats() {
			fmt.Fprintf(out, "        %s ok=%d failed=%d issued=%d now=%d", l.GetLocality().GetZone(), l.GetTotalSuccessfulRequests(), l.GetTotalErrorRequests(), l.GetTotalIssuedRequests(), l.GetTotalRequestsInProgress())
			for _, m := range l.GetLoadMetricStats() {
				fmt.Fprintf(out, " metric=%s:%d:%v", m.GetMetricName(), m.GetNumRequestsFinishedWithMetric(), m.GetTotalMetricValue())
			}
			if m := l.GetCpuUtilization(); m != nil {
				fmt.Fprintf(out, " cpu=%d:%v", m.GetNumRequestsFinishedWithMetric(), m.GetTotalMetricValue())
			}
			for _, e := range l.GetUpstreamEndpointStats() {
				fmt.Fprintf(out, " endpoint=%s ok=%d now=%d", e.GetAddress().GetSocketAddress().GetAddress(), e.GetTotalSuccessfulRequests(), e.GetTotalRequestsInProgress())
			}
			out.WriteString("\n")
		}
	}
}
