package relay

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/internal/testplane"
)

// syncBuffer can be written to concurrently.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// String returns what was written.
func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Whichever client of a partition is first, and whatever else its Node has, the others get the partition's resources,
// also after it has left. The operator can see that their Nodes differ.
func TestTheFirstClientDoesNotDecideForThePartition(t *testing.T) {
	plane := newRecordingPlane()
	var log syncBuffer
	r, address := runRelay(t, `
listeners: [{address: "127.0.0.1:0"}]
authorities: [{name: cp, servers: [{address: "`+testplane.Listen(t, plane)+`", protocol: delta}]}]
old_style_names: [{authority: cp, partition: node.cluster, node_fields: [metadata.APP]}]
`, slog.New(slog.NewTextHandler(&log, nil)))
	conn := connectTo(t, address)

	metadata, err := structpb.NewStruct(map[string]any{"ROLE": "admin", "APP": "cart"})
	if err != nil {
		t.Fatal(err)
	}
	first := openDelta(t, conn)
	first.ask(t, &corev3.Node{Id: "a", Cluster: "edge", Metadata: metadata, Locality: &corev3.Locality{Zone: "z"}}, "x")
	first.receive(t, 1)
	var clients []*deltaClient
	for _, id := range []string{"b", "c", "d"} {
		c := openDelta(t, conn)
		c.ask(t, &corev3.Node{Id: id, Cluster: "edge"}, "x")
		c.receive(t, 1)
		clients = append(clients, c)
	}
	first.end()
	clients[0].ask(t, nil, "y")
	clients[0].receive(t, 1)

	var nodes []*corev3.Node
	plane.await(t, "the relay asks", func() bool {
		nodes = plane.nodes
		return plane.open == 1
	})
	if len(nodes) != 1 {
		t.Fatalf("%d streams upstream for one partition", len(nodes))
	}
	got := nodes[0]
	if got.GetId() != "a" || got.GetCluster() != "edge" || got.GetLocality() != nil || len(got.GetMetadata().GetFields()) != 1 ||
		got.GetMetadata().GetFields()["APP"].GetStringValue() != "cart" {
		t.Errorf("upstream goes %v, want id, cluster and metadata.APP of the first client", got)
	}
	lines := 0
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "clients of one partition") {
			lines++
			if want := `rule=old_style_names[0] authority=cp partition=edge differ_in=locality,metadata client=b first=a`; !strings.Contains(line, want) {
				t.Errorf("logged is %s, want %s", line, want)
			}
		}
	}
	if lines != 1 {
		t.Errorf("%d lines say that clients of the partition differ, want one", lines)
	}
	stream := r.observer.Authorities()[0].Streams[0]
	if stream.Node != "a" || !slices.Equal(stream.NodesDiffer, []string{"locality", "metadata"}) {
		t.Errorf("/authorities says node %q, nodes_differ %q", stream.Node, stream.NodesDiffer)
	}
}
