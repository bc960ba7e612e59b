package downstream

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/cache"
)

// loadTaker takes the reports of one client.
type loadTaker struct {
	client  chan LoadClient
	reports chan *lrsv3.LoadStatsRequest
	changed chan struct{}
	sent    atomic.Bool
	closed  chan struct{}
	held    map[any]int64
	allHeld int64
}

func newLoadTaker() *loadTaker {
	return &loadTaker{
		client: make(chan LoadClient, 1), reports: make(chan *lrsv3.LoadStatsRequest, 10),
		changed: make(chan struct{}, 1), closed: make(chan struct{}),
	}
}

func (l *loadTaker) Open(c LoadClient) (LoadStream, error) {
	l.client <- c
	return l, nil
}
func (l *loadTaker) Held(account any) (own, all int64) { return l.held[account], l.allHeld }
func (l *loadTaker) Report(r *lrsv3.LoadStatsRequest)  { l.reports <- r }
func (l *loadTaker) Changed() <-chan struct{}          { return l.changed }
func (l *loadTaker) Close()                            { close(l.closed) }
func (l *loadTaker) Response() (*lrsv3.LoadStatsResponse, time.Duration) {
	if l.sent.Swap(true) {
		return nil, 0
	}
	return &lrsv3.LoadStatsResponse{SendAllClusters: true, LoadReportingInterval: durationpb.New(time.Second)}, 0
}

// openLoads opens a stream for load reports to a listener with limits.
func openLoads(t *testing.T, loads LoadReports, l Limits) (*Server, grpc.ClientStream) {
	t.Helper()
	topics := newTestCache(&recordingSource{}, 1000)
	t.Cleanup(topics.Close)
	server, _ := newTestServer(topics, DefaultMaxResponseBytes)
	server.options.Loads = loads
	o := ListenerOptions{Limits: l}
	m := serveInMemory(t, func(g *grpc.Server) { server.Register(g, o) }, ServerOptions(o)...)
	stream, err := lrsv3.NewLoadReportingServiceClient(m.dial()).StreamLoadStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return server, stream
}

// A client's first request has its Node, the answer has what it should report, and each further request is a report.
func TestLoadReportsAreTakenOverAStream(t *testing.T) {
	loads := newLoadTaker()
	server, stream := openLoads(t, loads, Limits{Streams: 1})
	if err := stream.SendMsg(&lrsv3.LoadStatsRequest{Node: &corev3.Node{Id: "edge"}}); err != nil {
		t.Fatal(err)
	}
	if c := <-loads.client; c.Node.GetId() != "edge" {
		t.Errorf("the client is %v", c.Node)
	}
	var r lrsv3.LoadStatsResponse
	if err := stream.RecvMsg(&r); err != nil || !r.GetSendAllClusters() {
		t.Fatalf("the client is asked for %v (%v)", &r, err)
	}
	report := loadOf(2)
	if err := stream.SendMsg(report); err != nil {
		t.Fatal(err)
	}
	if got := <-loads.reports; !proto.Equal(got, report) {
		t.Errorf("the report is %v, want %v", got, report)
	}
	// The stream counts as others do.
	if n := server.stats.limits[limitStreams].Load(); n != 0 {
		t.Errorf("%d streams are too many", n)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	<-loads.closed
}

// loadOf is a report of so many localities without anything.
func loadOf(localities int) *lrsv3.LoadStatsRequest {
	st := &endpointv3.ClusterStats{ClusterName: "c", UpstreamLocalityStats: make([]*endpointv3.UpstreamLocalityStats, localities)}
	for i := range st.UpstreamLocalityStats {
		st.UpstreamLocalityStats[i] = &endpointv3.UpstreamLocalityStats{}
	}
	return &lrsv3.LoadStatsRequest{ClusterStats: []*endpointv3.ClusterStats{st}}
}

// A report with too many parts ends its stream before it is decoded, and so do a Node and names that are too long.
func TestLoadReportsAreBounded(t *testing.T) {
	const clusterAndName = 2
	for _, tt := range []struct {
		name  string
		first *lrsv3.LoadStatsRequest
		then  *lrsv3.LoadStatsRequest
		limit string // none: it is taken
	}{
		{"as many parts as there may be", &lrsv3.LoadStatsRequest{}, loadOf(maxLoadParts - clusterAndName), ""},
		{"one part more", &lrsv3.LoadStatsRequest{}, loadOf(maxLoadParts - clusterAndName + 1), "load_report_parts"},
		{"one part more in the first request", loadOf(maxLoadParts - clusterAndName + 1), nil, "load_report_parts"},
		{"a large Node", &lrsv3.LoadStatsRequest{Node: sizedNode(maxNodeBytes + 1)}, nil, "node_bytes"},
		{"a long name", &lrsv3.LoadStatsRequest{}, &lrsv3.LoadStatsRequest{ClusterStats: []*endpointv3.ClusterStats{{ClusterServiceName: strings.Repeat("s", 101)}}}, "name_bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			loads := newLoadTaker()
			server, stream := openLoads(t, loads, Limits{NameBytes: 100})
			for _, r := range []*lrsv3.LoadStatsRequest{tt.first, tt.then} {
				if r == nil {
					continue
				}
				if err := stream.SendMsg(r); err != nil {
					t.Fatal(err)
				}
			}
			if tt.limit == "" {
				<-loads.reports
				return
			}
			var err error
			for err == nil {
				err = stream.RecvMsg(&lrsv3.LoadStatsResponse{})
			}
			if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), tt.limit) {
				t.Errorf("the stream ended with %v, want RESOURCE_EXHAUSTED for %s", err, tt.limit)
			}
			if n := server.Stats().Limits[tt.limit]; n != 1 {
				t.Errorf("%d times over %s", n, tt.limit)
			}
		})
	}
}

// The scopes that a client can make up count against the limit of its stream.
func TestLoadReportsKeepToTheScopesOfAStream(t *testing.T) {
	loads := newLoadTaker()
	_, stream := openLoads(t, loads, Limits{Scopes: 2})
	if err := stream.SendMsg(&lrsv3.LoadStatsRequest{}); err != nil {
		t.Fatal(err)
	}
	c := <-loads.client
	var errs []error
	for i := range 3 {
		errs = append(errs, c.Enter(cache.Scope{Authority: fmt.Sprint(i)}))
	}
	if errs[0] != nil || errs[1] != nil || errs[2] == nil {
		t.Errorf("entering three scopes gives %v, want an error for the third", errs)
	}
	c.Leave(cache.Scope{Authority: "0"})
	if err := c.Enter(cache.Scope{Authority: "3"}); err != nil {
		t.Errorf("there is room again, and entering gives %v", err)
	}
}

// If nothing receives the reports, there is no such service.
func TestThereIsNoServiceForLoadReportsWithoutATaker(t *testing.T) {
	_, stream := openLoads(t, nil, Limits{})
	if err := stream.RecvMsg(&lrsv3.LoadStatsResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("the stream ended with %v, want UNIMPLEMENTED", err)
	}
}
