package interop

// grpc-java and java-control-plane, which are programs in java/.

import (
	"fmt"
	"sync"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

const javaPrograms peers.Java = "java"

var prepareJava = sync.OnceValue(javaPrograms.Build)

func dialJava(t testing.TB, bootstrap, target string) shopper {
	t.Helper()
	return dialForeigner(t, "grpc-java", bootstrap, target, javaPrograms.Command("Client")...)
}

// javaControlPlane is java-control-plane with a shop.
type javaControlPlane struct {
	*peers.JavaControlPlane
	t       testing.TB
	address string
	group   string // of nodeID
	version int

	mu      sync.Mutex
	plane   *plane // records requests if not nil
	streams map[int]int
}

func startJavaControlPlane(f form) func(testing.TB) controlPlane {
	return func(t testing.TB) controlPlane { return newJavaControlPlane(t, f, peers.OneForAll) }
}

func newJavaControlPlane(t testing.TB, f form, groups string) *javaControlPlane {
	t.Helper()
	required(t, "java-control-plane", prepareJava)
	j := &javaControlPlane{t: t, group: peers.OneForAll, streams: map[int]int{}}
	if groups == peers.OneByID {
		j.group = nodeID
	}
	j.JavaControlPlane = javaPrograms.StartControlPlane(t, map[form]string{sotw: "sotw", delta: "delta"}[f], groups, j.record)
	j.address = j.Serve("127.0.0.1:0")
	return j
}

// record records a request.
func (j *javaControlPlane) record(r peers.JavaRequest) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.plane == nil {
		return
	}
	stream, known := j.streams[r.Stream]
	if !known {
		stream = j.plane.open()
		j.streams[r.Stream] = stream
	}
	var nack *statuspb.Status
	if r.Error != nil {
		nack = &statuspb.Status{Code: int32(codes.Unknown), Message: *r.Error}
	}
	j.plane.record(stream, r.Node, r.Type, nack)
}

// turn replaces the snapshot.
func (j *javaControlPlane) turn(to world) {
	j.t.Helper()
	j.version++
	var resources []proto.Message
	for _, named := range to {
		for _, r := range named {
			resources = append(resources, r)
		}
	}
	j.Set(j.group, fmt.Sprint(j.version), resources)
}

// observe implements program.
func (j *javaControlPlane) observe(p *plane) (address string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.plane = p
	return j.address
}

func (j *javaControlPlane) target() string { return "xds:///shop" }

func (j *javaControlPlane) show(cluster string, at *backend) {
	j.turn(world{
		resource.ListenerType: {"shop": apiListener(j.t, "shop", "routes")},
		resource.RouteType:    {"routes": routesTo("routes", cluster)},
		resource.ClusterType:  {cluster: edsCluster(cluster)},
		resource.EndpointType: {cluster: endpointsAt(cluster, at)},
	})
}
