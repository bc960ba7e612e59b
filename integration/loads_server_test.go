package integration

// A control plane that receives load reports, and a client that sends them.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
)

// loadServer is the load reporting service (LRS) of a control plane. It keeps its sums when the control plane
// is stopped.
type loadServer struct {
	lrsv3.UnimplementedLoadReportingServiceServer
	asks lrsv3.LoadStatsResponse
	// forgets says that the reports are only counted.
	forgets bool
	watched[loadSeen]
}

// loadSeen has what a loadServer has received.
type loadSeen struct {
	streams []*corev3.Node // the Node of each stream
	open    int
	reports int
	// sums has the sum of each count by cluster, zone and kind. now has the requests in progress by cluster
	// and zone.
	sums    map[string]uint64
	now     map[string]uint64
	periods []time.Duration // the load_report_interval of each cluster in each report
}

func newLoadServer(every time.Duration, clusters ...string) *loadServer {
	l := &loadServer{}
	l.asks.Clusters, l.asks.SendAllClusters = clusters, len(clusters) == 0
	l.asks.LoadReportingInterval = durationpb.New(every)
	l.value.sums, l.value.now = map[string]uint64{}, map[string]uint64{}
	return l
}

// StreamLoadStats implements the service.
func (l *loadServer) StreamLoadStats(stream lrsv3.LoadReportingService_StreamLoadStatsServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	l.update(func(s *loadSeen) {
		s.streams = append(s.streams, first.GetNode())
		s.open++
	})
	defer l.update(func(s *loadSeen) { s.open-- })
	if err := stream.Send(&l.asks); err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil
		}
		l.update(func(s *loadSeen) {
			if s.reports++; !l.forgets {
				s.add(r.GetClusterStats())
			}
		})
	}
}

func (s *loadSeen) add(stats []*endpointv3.ClusterStats) {
	clear(s.now)
	for _, st := range stats {
		s.periods = append(s.periods, st.GetLoadReportInterval().AsDuration())
		s.sums[st.GetClusterName()+" dropped"] += st.GetTotalDroppedRequests()
		for _, l := range st.GetUpstreamLocalityStats() {
			at := st.GetClusterName() + " " + l.GetLocality().GetZone()
			s.sums[at+" ok"] += l.GetTotalSuccessfulRequests()
			s.sums[at+" failed"] += l.GetTotalErrorRequests()
			s.sums[at+" issued"] += l.GetTotalIssuedRequests()
			s.now[at] += l.GetTotalRequestsInProgress()
		}
	}
}

// awaitSums waits until the sums, without zeros, are want.
func (l *loadServer) awaitSums(t testing.TB, want map[string]uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var is map[string]uint64
	if l.wait(ctx, func(s *loadSeen) bool {
		is = maps.Clone(s.sums)
		maps.DeleteFunc(is, func(_ string, n uint64) bool { return n == 0 })
		return maps.Equal(is, want)
	}) != nil {
		t.Fatalf("the control plane received\n%v, want\n%v", is, want)
	}
}

// loadClient is a client's stream of load reports.
type loadClient struct {
	t testing.TB
	lrsv3.LoadReportingService_StreamLoadStatsClient
	conn *grpc.ClientConn
}

// reportLoad opens a stream for load reports. The client supports send_all_clusters.
func reportLoad(t testing.TB, address, node string) *loadClient {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	c := &loadClient{t: t, conn: conn}
	t.Cleanup(c.close)
	if c.LoadReportingService_StreamLoadStatsClient, err = lrsv3.NewLoadReportingServiceClient(conn).StreamLoadStats(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Send(&lrsv3.LoadStatsRequest{Node: &corev3.Node{Id: node, ClientFeatures: []string{"envoy.lrs.supports_send_all_clusters"}}}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *loadClient) close() { _ = c.conn.Close() }

// awaitAsked waits until the server asks for these clusters at this interval. No clusters: for all.
func (c *loadClient) awaitAsked(every time.Duration, clusters ...string) {
	c.t.Helper()
	for {
		r, err := c.Recv()
		if err != nil {
			c.t.Fatalf("waiting for a request to report %v every %v: %v", clusters, every, err)
		}
		if r.GetLoadReportingInterval().AsDuration() == every && slices.Equal(r.GetClusters(), clusters) && r.GetSendAllClusters() == (len(clusters) == 0) {
			return
		}
		c.t.Logf("the server asks for %v", r)
	}
}

// report sends a load report for a cluster in a zone: ok successful requests, and now requests in progress.
func (c *loadClient) report(cluster, zone string, ok, now uint64) {
	c.t.Helper()
	if err := c.Send(&lrsv3.LoadStatsRequest{ClusterStats: []*endpointv3.ClusterStats{{
		ClusterName: cluster, LoadReportInterval: durationpb.New(time.Second),
		UpstreamLocalityStats: []*endpointv3.UpstreamLocalityStats{{
			Locality: &corev3.Locality{Zone: zone}, TotalSuccessfulRequests: ok, TotalRequestsInProgress: now,
		}},
	}}}); err != nil {
		c.t.Fatal(err)
	}
}

// String describes the received reports, for a failed test.
func (s *loadSeen) String() string {
	return fmt.Sprintf("%d streams, %d open, %d reports, %v", len(s.streams), s.open, s.reports, s.sums)
}
