package relay

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/testplane"
)

// Three relays of a fleet whose connections to each other are cut, or hang, while the control plane changes everything
// again and again. The history of each client is checked: see chaosClient.

var (
	fleetChaos     = flag.Int("fleet-chaos", 4, "how many failures TestFleetChaos causes")
	fleetChaosSeed = flag.Uint64("fleet-chaos-seed", 1, "the seed of their order")
)

const (
	chaosRelays = 3
	chaosPause  = 700 * time.Millisecond
	// chaosGap is the longest time that a change may take to all clients while members fail: two seconds until a member
	// counts as lost, and room for a busy machine.
	chaosGap = 20 * time.Second
)

// growingPlane is a control plane with one Cluster for each partition, whose version is a number that grows.
type growingPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu      sync.Mutex
	version int
	changed chan struct{}
	streams map[string]int // open, by the Node's cluster
}

func (p *growingPlane) change() (version int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version++
	close(p.changed)
	p.changed = make(chan struct{})
	return p.version
}

// open returns how many streams are open.
func (p *growingPlane) open() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, streams := range p.streams {
		n += streams
	}
	return n
}

// DeltaAggregatedResources implements the aggregated service.
func (p *growingPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	zone := first.GetNode().GetCluster()
	count := func(d int) {
		p.mu.Lock()
		p.streams[zone] += d
		p.mu.Unlock()
	}
	count(1)
	defer count(-1)
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	held := first.GetInitialResourceVersions()["c"]
	for n := 1; ; n++ {
		p.mu.Lock()
		version, changed := strconv.Itoa(p.version), p.changed
		p.mu.Unlock()
		if version != held {
			a, err := anypb.New(&clusterv3.Cluster{Name: "c", AltStatName: version})
			if err != nil {
				return err
			}
			held = version
			r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: first.GetTypeUrl(), Nonce: fmt.Sprint(n), Resources: []*discoveryv3.Resource{{Name: "c", Version: version, Resource: a}}}
			if err := stream.Send(r); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// peersWay is the way to the door of a member, which can be cut, or hang.
type peersWay struct {
	mu    sync.Mutex
	to    string
	cut   bool
	hangs chan struct{} // closed when it hangs no more; nil if it does not
	conns map[net.Conn]struct{}
}

// startPeersWay serves the way to an address at another one.
func startPeersWay(t *testing.T, to string) (w *peersWay, address string) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w = &peersWay{to: to, conns: map[net.Conn]struct{}{}}
	var carrying sync.WaitGroup
	carrying.Go(func() {
		for {
			in, err := socket.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil || !w.add(in, out) {
				_ = in.Close()
				if out != nil {
					_ = out.Close()
				}
				continue
			}
			carrying.Go(func() { w.carry(in, out) })
			carrying.Go(func() { w.carry(out, in) })
		}
	})
	t.Cleanup(func() {
		_ = socket.Close()
		w.set(true, false)
		carrying.Wait()
	})
	return w, socket.Addr().String()
}

func (w *peersWay) add(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		w.conns[c] = struct{}{}
	}
	return !w.cut
}

// carry copies until the connection ends.
func (w *peersWay) carry(from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		w.mu.Lock()
		hangs := w.hangs
		w.mu.Unlock()
		if hangs != nil {
			<-hangs
		}
		if n > 0 {
			_, _ = to.Write(buffer[:n]) // the next read fails
		}
		if err != nil {
			break
		}
	}
	_, _ = from.Close(), to.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, from)
	delete(w.conns, to)
}

// set cuts the way, or has it hang, or neither.
func (w *peersWay) set(cut, hangs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	switch {
	case hangs && w.hangs == nil:
		w.hangs = make(chan struct{})
	case !hangs && w.hangs != nil:
		close(w.hangs)
		w.hangs = nil
	}
	if cut {
		for c := range w.conns {
			_ = c.Close()
		}
	}
}

// chaosClient checks its history: its stream does not end, nothing is removed, and no version is older than one before.
type chaosClient struct {
	id      string
	mu      sync.Mutex
	version int
	wrong   []string
}

func (c *chaosClient) follow(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) {
	for {
		r, err := stream.Recv()
		if stream.Context().Err() != nil {
			return
		}
		c.mu.Lock()
		if err != nil {
			c.wrong = append(c.wrong, fmt.Sprintf("its stream has ended: %v", err))
			c.mu.Unlock()
			return
		}
		for _, name := range r.GetRemovedResources() {
			c.wrong = append(c.wrong, "it was sent the removal of "+name)
		}
		for _, e := range r.GetResourceErrors() {
			c.wrong = append(c.wrong, "it was sent the error "+e.GetErrorDetail().GetMessage())
		}
		for _, resource := range r.GetResources() {
			_, label := labelOf(resource.GetResource())
			version, err := strconv.Atoi(label)
			if err != nil || version <= c.version {
				c.wrong = append(c.wrong, fmt.Sprintf("after version %d, it was sent %q", c.version, label))
			}
			c.version = max(c.version, version)
		}
		c.mu.Unlock()
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}) // Recv says why
	}
}

func (c *chaosClient) has() (version int, wrong []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version, c.wrong
}

// TestFleetChaos: whatever happens between members, clients get every change in time, nothing is removed or becomes older,
// and afterwards the control plane has one stream for each partition. With -fleet-chaos=N it causes N failures.
func TestFleetChaos(t *testing.T) {
	plane := &growingPlane{version: 1, changed: make(chan struct{}), streams: map[string]int{}}
	address := testplane.Listen(t, plane)
	var doors, members []string
	var ways []*peersWay
	for range chaosRelays {
		door := freeAddress(t)
		w, at := startPeersWay(t, door)
		doors, members, ways = append(doors, door), append(members, at), append(ways, w)
	}
	var clients []*chaosClient
	for i := range chaosRelays {
		_, at := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0"}]
node: {id: relay-%d}
authorities: [{name: a, servers: [{address: "%s", protocol: delta}]}]
old_style_names: [{authority: a, partition: node.cluster}]
drain: {time: 0s}
fleet: {name: edge, listen: "%s", advertise: "%s", members: {static: ["%s"]}}`, i, address, doors[i], members[i], strings.Join(members, `", "`)), slog.New(slog.DiscardHandler))
		conn := connectTo(t, at)
		for zone := range fleetZones {
			ctx, cancel := context.WithCancel(context.Background())
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
			if err == nil {
				node := &corev3.Node{Id: fmt.Sprintf("%d-%d", i, zone), Cluster: fmt.Sprint(zone)}
				err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: clusterTypeURL})
			}
			if err != nil {
				cancel()
				t.Fatal(err)
			}
			c, done := &chaosClient{id: fmt.Sprintf("%d-%d", i, zone)}, make(chan struct{})
			go func() { defer close(done); c.follow(stream) }()
			t.Cleanup(func() { cancel(); <-done })
			clients = append(clients, c)
		}
	}
	awaitAll := func(when string, version int) {
		t.Helper()
		begun := time.Now()
		for _, c := range clients {
			for {
				has, wrong := c.has()
				if len(wrong) > 0 {
					t.Fatalf("%s: client %s: %v", when, c.id, wrong)
				}
				if has >= version {
					break
				}
				if time.Since(begun) > chaosGap {
					t.Fatalf("%s: client %s has version %d after %v, want %d", when, c.id, has, chaosGap, version)
				}
				<-time.After(10 * time.Millisecond)
			}
		}
	}
	awaitAll("at the start", 1)
	random := rand.New(rand.NewPCG(*fleetChaosSeed, 0))
	for n := range *fleetChaos {
		at, cut := random.IntN(chaosRelays), random.IntN(2) == 0
		when := fmt.Sprintf("failure %d: member %d, cut %t (seed %d)", n, at, cut, *fleetChaosSeed)
		ways[at].set(cut, !cut)
		for range 3 {
			plane.change()
			<-time.After(time.Duration(random.Int64N(int64(chaosPause))))
		}
		awaitAll(when, plane.change())
		ways[at].set(false, false)
		awaitAll(when+", which is over", plane.change())
	}
	await(t, "the control plane has one stream for each partition", func() bool { return plane.open() == fleetZones })
	awaitAll("at the end", plane.change())
	if n := plane.open(); n != fleetZones {
		t.Errorf("%d streams are open, want one for each partition: %d", n, fleetZones)
	}
}
